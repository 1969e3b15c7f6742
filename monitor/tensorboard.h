// Writes scalars for TensorBoard: an event file is a sequence of length-prefixed, checksummed protobuf
// records. Encodes only the two messages that scalars need, without a protobuf library.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "monitor/output_file.h"

namespace cleave::monitor {

struct TensorBoardOptions {
  std::function<double()> now{};  // unix seconds; empty = the system's clock
  std::string host{};             // empty = this machine's name
  int64_t pid = 0;                // 0 = this process
};

class TensorBoard {
 public:
  // Starts a new file events.out.tfevents.<seconds>.<host>.<pid>.<n> in `folder`, with the first free n;
  // creates missing folders. TensorBoard merges the files of a folder, so a resumed run adds one. Throws
  // Error(usage) if this fails.
  explicit TensorBoard(const std::string& folder, TensorBoardOptions options = {});

  // Adds a point to the curve `tag`. DeepSpeed's step is the number of trained samples. Accepts non-finite
  // values.
  void scalar(std::string_view tag, double value, int64_t step);

  const std::string& path() const { return file_.path(); }

 private:
  TensorBoardOptions options_;
  OutputFile file_;
};

// CRC-32C (Castagnoli); crc32c("123456789") is 0xE3069283.
uint32_t crc32c(std::string_view bytes);

}  // namespace cleave::monitor
