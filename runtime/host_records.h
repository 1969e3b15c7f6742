// A rank's share of a checkpoint where the host can read and write it: the records themselves, or copies of
// those on a GPU.
#pragma once
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/memory.h"
#include "device/stream.h"

namespace cleave {

class HostRecords {
 public:
  // Copies come from `memory`; waits for the stream. Everything given must outlive this.
  HostRecords(std::vector<Record> records, Memory& memory, Stream& stream);

  const std::vector<Record>& here() const { return here_; }
  // After here() was overwritten: brings it to where the records live, and waits.
  void store();

 private:
  std::vector<Record> records_, here_;
  std::vector<Buffer> copies_;
  Stream& stream_;
};

}  // namespace cleave
