// Records the calls of a rank: checksums of the memory that it sends, and the bytes that it receives.
#pragma once
#include <atomic>
#include <deque>

#include "checkpoint/checksum.h"
#include "runtime/replay/moved_bytes.h"
#include "runtime/replay/step_record.h"

namespace cleave::runtime {

class CallRecorder final : public comm::CallTap {
 public:
  explicit CallRecorder(Device device) : moved_(device) {}
  ~CallRecorder() override;

  // Begins to record in memory, for calls with few bytes, or in a new file. Call when no stream has work.
  // Throws Error(checkpoint).
  void record_in_memory();
  void record_in_file(const std::filesystem::path& file);
  // Adds bytes to the file of the recording.
  StoredBytes add(const void* bytes, int64_t size);
  // Ends the recording when no stream has work, and returns its calls. Throws Error(checkpoint) if the file
  // could not be written.
  std::vector<RecordedCall> stop();
  void drop();  // ends a recording, if there is one, without its calls
  const std::vector<std::byte>& in_memory() const { return memory_; }  // received bytes, after stop()

  size_t begin(const comm::SeenCall& call, Stream& stream) override;
  void end(size_t number, const comm::SeenCall& call, Stream& stream) override;

 private:
  struct Slot {
    RecordedCall call;
    checkpoint::Checksum sent = {}, received = {};
    std::vector<std::byte> bytes = {};  // received ones of a recording in memory
    int64_t at = 0;                     // place of the next received byte
  };
  void take(Slot& slot, const std::byte* bytes, int64_t size);
  void write(int64_t at, const void* bytes, int64_t size);

  bool on_ = false;
  std::deque<Slot> slots_;  // streams keep references
  std::vector<std::byte> memory_;
  std::filesystem::path path_;
  int file_ = -1;               // -1: in memory
  int64_t end_ = 0;             // of the recording
  std::atomic<int> error_ = 0;  // of the first failed write
  MovedBytes moved_;
};

}  // namespace cleave::runtime
