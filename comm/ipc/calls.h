// Record of a rank's recent calls in shared memory. Other ranks compare it with their own calls to detect a
// mismatch. Readers do not wait: they see the writer's progress at some time, and only its last few calls.
#pragma once
#include <atomic>
#include <optional>

#include "comm/post.h"

namespace cleave::comm {

// Zero-initialized. One thread writes; any thread may read.
class IpcCalls {
 public:
  void tell(const Post& post) {
    const uint64_t next = made_.load(std::memory_order_relaxed) + 1;
    Entry& entry = entries_[next % kRing];
    const uint64_t kinds = uint64_t(post.op) | uint64_t(post.dtype) << 8 | uint64_t(post.by) << 16 |
                           uint64_t(uint32_t(post.peer)) << 32;
    entry.kinds.store(kinds, std::memory_order_release);
    entry.numel.store(post.numel, std::memory_order_release);
    made_.store(next, std::memory_order_release);
  }
  uint64_t made() const { return made_.load(std::memory_order_acquire); }
  // The n-th call, counted from 1; empty if it was not made yet, or its entry may have been reused.
  std::optional<Post> call(uint64_t n) const {
    if (!holds(n)) return {};
    const uint64_t kinds = entries_[n % kRing].kinds.load(std::memory_order_acquire);
    const int64_t numel = entries_[n % kRing].numel.load(std::memory_order_acquire);
    if (!holds(n)) return {};
    return Post{Collective(uint8_t(kinds)), DType(uint8_t(kinds >> 8)), int32_t(kinds >> 32), numel,
                Reduction(uint8_t(kinds >> 16))};
  }

 private:
  static constexpr uint64_t kRing = 4;
  bool holds(uint64_t n) const {
    const uint64_t last = made();
    return 0 < n && n <= last && last - n < kRing - 1;
  }
  struct Entry {
    std::atomic<uint64_t> kinds;
    std::atomic<int64_t> numel;
  };
  std::atomic<uint64_t> made_;
  Entry entries_[kRing];
};

// Compares the latest calls that both ranks have recorded; describes the difference, empty if equal.
std::string disagreement(const IpcCalls& mine, const IpcCalls& theirs, int my_rank, int their_rank);

}  // namespace cleave::comm
