// Record of a rank's last collectives and messages in memory of fixed size. Writers take no lock, and a
// signal handler can read it at any time, also while it interrupts a writer.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/post.h"

namespace cleave::comm {

// A call at the time of its entry.
struct FlightCall {
  static constexpr size_t kText = 64;

  int group = -1;       // index in the ring's groups; -1: not in the table
  uint64_t number = 0;  // of the call within its order: the group's collectives, or one pair and direction
  Post post = {};
  std::string_view what = {};  // stored up to kText bytes
  const char* phase = "";      // literal; from the thread that made the call
  int64_t queued_ns = 0;       // 0: unknown
};

class FlightRing {
 public:
  static constexpr uint64_t kCalls = 64;
  static constexpr int kGroups = 64;

  struct GroupFacts {
    std::string name;
    std::vector<int> ranks;                     // of the world
    std::atomic<uint64_t> entered{0}, done{0};  // number of the newest collective
  };

  FlightRing() = default;
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  static int64_t now_ns();  // wall clock, so that records of several hosts compare

  // Index of the group with this name and these ranks; -1 if the table is full.
  int join(const std::string& name, const std::vector<int>& ranks);

  // The call waits for others, or moves data. Returns its ticket.
  uint64_t enter(const FlightCall& call, int64_t entered_ns = now_ns());
  void finish(uint64_t ticket, int64_t finished_ns = now_ns());

  // Nanoseconds in finished calls so far, by the phase that made them: the waits for other ranks, and the
  // transfers.
  enum class Phase : uint8_t { forward, backward, update, other };
  static constexpr int kPhases = 4;
  int64_t time_in_calls(Phase phase) const { return times_[size_t(phase)].load(std::memory_order_relaxed); }

  // Async-signal-safe readers.
  struct Seen {
    FlightCall call;                          // `what` views `text`
    int64_t entered_ns = 0, finished_ns = 0;  // finished 0: running, or failed
    char text[FlightCall::kText] = {};
  };
  uint64_t made() const { return made_.load(std::memory_order_acquire); }  // last ticket
  // False if the ring no longer has this call.
  bool read(uint64_t ticket, Seen& seen) const;
  const GroupFacts* group(int index) const {
    return index < 0 ? nullptr : groups_[index].load(std::memory_order_acquire);
  }

 private:
  static constexpr size_t kWords = FlightCall::kText / sizeof(uint64_t);
  struct Entry {
    std::atomic<bool> busy{false};    // a thread writes it
    std::atomic<uint64_t> ticket{0};  // 0: being written
    std::atomic<uint64_t> kinds{0}, number{0};
    std::atomic<int64_t> numel{0}, queued{0}, entered{0}, finished{0};
    std::atomic<int> group{-1};
    std::atomic<const char*> phase{""};
    std::atomic<uint64_t> text[kWords] = {};
  };
  void write_text(Entry& entry, std::string_view what);

  std::atomic<uint64_t> made_{0};
  std::atomic<int64_t> times_[kPhases] = {};
  Entry entries_[kCalls];
  std::atomic<GroupFacts*> groups_[kGroups] = {};
  std::mutex joining_;  // guards owned_
  std::vector<std::unique_ptr<GroupFacts>> owned_;
};

}  // namespace cleave::comm
