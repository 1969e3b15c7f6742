#include "comm/post_board.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace cleave::comm {
namespace {

TEST(PostBoard, HasTheLastCallByItsNumberOnly) {
  const auto board = std::make_unique<PostBoard>();
  EXPECT_FALSE(board->call(1).has_value());
  const Post sum{Collective::reduce_scatter, DType::bf16, -1, 100, Reduction::max},
      root{Collective::broadcast, DType::fp32, 3, 7};
  board->tell(4, sum);
  EXPECT_EQ(board->call(4), sum);
  EXPECT_FALSE(board->call(3).has_value());
  board->tell(9, root);
  EXPECT_FALSE(board->call(4).has_value());
  EXPECT_EQ(board->call(9), root);
}

TEST(PostBoard, NeverReturnsATornCall) {
  const auto board = std::make_unique<PostBoard>();
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int64_t n = 1; n <= 300'000; ++n)
      board->tell(uint64_t(n), {Collective::all_reduce, DType::fp32, int32_t(n), n});
    done = true;
  });
  int wrong = 0;
  for (uint64_t n = 1; !done; n = n % 300'000 + 1)
    if (const auto post = board->call(n)) wrong += post->numel != int64_t(n) || post->peer != int32_t(n);
  writer.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace cleave::comm
