// The collective that a rank waits in for long, in memory that other ranks read without a lock.
#pragma once
#include <atomic>
#include <optional>

#include "comm/post.h"

namespace cleave::comm {

// Zero-initialized. One thread writes; any thread may read.
class PostBoard {
 public:
  void tell(uint64_t number, const Post& post) {
    number_.store(0);
    kinds_.store(uint64_t(post.op) | uint64_t(post.dtype) << 8 | uint64_t(post.by) << 16 |
                 uint64_t(uint32_t(post.peer)) << 32);
    numel_.store(post.numel);
    number_.store(number);
  }
  // The rank's call with this number; empty if it told another one, or none.
  std::optional<Post> call(uint64_t number) const {
    if (number_.load() != number) return {};
    const uint64_t kinds = kinds_.load();
    const Post post{Collective(uint8_t(kinds)), DType(uint8_t(kinds >> 8)), int32_t(kinds >> 32),
                    numel_.load(), Reduction(uint8_t(kinds >> 16))};
    return number_.load() == number ? std::optional(post) : std::nullopt;
  }

 private:
  std::atomic<uint64_t> number_, kinds_;
  std::atomic<int64_t> numel_;
};

}  // namespace cleave::comm
