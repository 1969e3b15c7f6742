// Answers the calls of a rank alone from the record of a step, and compares the memory that the rank sends
// with that of the recorded step.
#pragma once
#include <deque>
#include <optional>
#include <span>

#include "checkpoint/checksum.h"
#include "core/input_file.h"
#include "runtime/replay/moved_bytes.h"
#include "runtime/replay/step_record.h"

namespace cleave::runtime {

class CallPlayer final : public comm::CallTap {
 public:
  // Opens the bytes of the calls. Throws Error(checkpoint).
  CallPlayer(const std::filesystem::path& folder, Device device);

  // Answers these calls from now on; they must outlive their work. `compares`: remember calls that send other
  // bytes. Call when no stream has work. Throws Error(checkpoint) if the file is too short.
  void play(std::span<const RecordedCall> calls, bool compares);
  // Returns the number of calls made so far.
  size_t made() const { return made_; }
  // Returns the numbers of calls that sent other bytes, in order. Call when no stream has work.
  std::vector<size_t> differing() const;
  std::vector<std::byte> bytes(const StoredBytes& stored) const;

  // Throws Error(checkpoint) if the rank makes another call than the recorded one. A stream throws
  // Error(checkpoint) if the bytes of a call are damaged.
  size_t begin(const comm::SeenCall& call, Stream& stream) override;
  void end(size_t number, const comm::SeenCall& call, Stream& stream) override;

 private:
  struct Slot {
    const RecordedCall* call;
    checkpoint::Checksum sent = {}, received = {};
    int64_t at = 0;  // place of the next byte to give
  };
  void require_whole(const StoredBytes& stored) const;
  void give(Slot& slot, std::byte* bytes, int64_t size) const;

  const InputFile file_;
  std::span<const RecordedCall> calls_;
  bool compares_ = false;
  size_t made_ = 0;
  std::deque<Slot> slots_;  // streams keep references
  MovedBytes moved_;
};

}  // namespace cleave::runtime
