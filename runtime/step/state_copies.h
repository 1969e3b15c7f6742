// Two copies of a rank's state in shared memory, which outlives the engine and the process of the rank: a
// process that replaces the rank restores it from there. Copies of consecutive steps alternate, so one is
// complete at any time. A new copy replaces that of the step before the last; no rank may begin it before all
// ranks have completed the last one.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "comm/shm/shared_memory.h"
#include "device/tensor.h"

namespace cleave::runtime {

// Returns the newest step of the first rank that every rank has; -1 without one. `steps`:
// StateCopies::steps() of each rank.
int64_t newest_common_step(std::span<const int64_t> steps);

class StateCopies {
 public:
  static constexpr int kCopies = 2;
  static constexpr size_t kTextBytes = 256 << 10;  // of a copy's text

  StateCopies() = default;
  // Continues the copies of an earlier process of this rank.
  explicit StateCopies(comm::SharedMemory earlier);

  // Returns the bytes of two copies with this many bytes of state.
  static int64_t bytes_for(int64_t state_bytes);
  // Creates the copies, or checks that existing ones have this size. Throws Error(internal) otherwise.
  void open(int64_t state_bytes);
  bool is_open() const { return memory_.data() != nullptr; }
  const comm::SharedMemory& memory() const { return memory_; }
  Tensor bytes() const;  // all of them

  // Step of each copy, -1 if it is incomplete.
  std::array<int64_t, kCopies> steps() const;
  int64_t newest() const;

  // State of a copy. `again`: state that never changes is there from an earlier copy.
  struct Copy {
    std::byte* state;
    bool again;
  };
  // Makes the copy for this step incomplete, and returns its memory. end() completes it.
  Copy begin(int64_t step);
  void end(int64_t step, const std::string& text);
  // Returns the complete copy of a step, and its text.
  const std::byte* state_of(int64_t step) const;
  std::string text_of(int64_t step) const;

 private:
  struct Header;
  struct Slot;
  Header& header() const;
  Slot& slot(int64_t step) const;
  std::byte* state(const Slot& slot) const;

  comm::SharedMemory memory_;
};

}  // namespace cleave::runtime
