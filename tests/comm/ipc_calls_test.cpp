#include "comm/ipc/calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace cleave::comm {
namespace {

const Post kSum{Collective::all_reduce, DType::fp32, -1, 100},
    kGather{Collective::all_gather, DType::bf16, -1, 7};

std::unique_ptr<IpcCalls> calls(std::initializer_list<Post> posts) {
  auto out = std::make_unique<IpcCalls>();
  for (const Post& p : posts) out->tell(p);
  return out;
}

TEST(IpcCalls, KeepsTheLatestCalls) {
  const auto c = calls({kSum, kGather, kSum, kGather, kSum});
  EXPECT_FALSE(calls({})->call(uint64_t(-1)).has_value());
  EXPECT_EQ(c->made(), 5u);
  EXPECT_EQ(c->call(5), kSum);
  EXPECT_EQ(c->call(4), kGather);
  EXPECT_EQ(c->call(3), kSum);
  for (const uint64_t n : {0, 1, 2, 6}) EXPECT_FALSE(c->call(n).has_value()) << n;
}

TEST(IpcCalls, ReportDisagreementOfRanksAtDifferentCalls) {
  const auto same = [](const IpcCalls& a, const IpcCalls& b) { return disagreement(a, b, 4, 6); };
  EXPECT_EQ(same(*calls({}), *calls({})), "");
  EXPECT_EQ(same(*calls({kSum}), *calls({})), "");
  EXPECT_EQ(same(*calls({kSum, kGather}), *calls({kSum, kGather, kSum})), "");
  const std::string text = same(*calls({kSum, kGather}), *calls({kSum, kSum, kGather}));
  for (const char* part : {"all_gather of 7 bf16 on rank 4", "all_reduce of 100 fp32 on rank 6"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  Post larger = kSum;
  larger.numel = 101;
  EXPECT_NE(same(*calls({kSum, kGather}), *calls({larger, kGather})), "") << "the call before the last";
  Post largest = kSum;
  largest.by = Reduction::max;
  const std::string ways = same(*calls({kSum}), *calls({largest}));
  for (const char* part : {"all_reduce of 100 fp32 on rank 4", "all_reduce by max of 100 fp32 on rank 6"})
    EXPECT_NE(ways.find(part), std::string::npos) << ways;
}

TEST(IpcCalls, NeverReturnsATornCall) {
  const auto c = calls({});
  std::thread writer([&] {
    for (int64_t n = 1; n <= 2'000'000; ++n) c->tell({Collective::broadcast, DType::fp32, int32_t(n), n});
  });
  int wrong = 0;
  for (uint64_t n = 0; n < 2'000'000; n = c->made())
    for (const uint64_t k : {n, n - 1, n - 2, n - 3})
      if (const auto post = c->call(k)) wrong += post->numel != int64_t(k) || post->peer != int32_t(k);
  writer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(c->call(2'000'000)->numel, 2'000'000);
}

}  // namespace
}  // namespace cleave::comm
