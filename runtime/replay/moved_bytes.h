// Reads and writes the memory of calls in the order of their streams, without waiting on the host. Memory of
// a GPU passes through a small pinned buffer for each stream.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "device/memory.h"
#include "device/stream.h"

namespace cleave::runtime {

class MovedBytes {
 public:
  static constexpr int64_t kPiece = int64_t{4} << 20;  // bytes of a buffer

  explicit MovedBytes(Device device) : memory_({}, Memory::Mode::real, device) {}

  // The functions are called with consecutive bytes of the tensors, possibly on a thread of the stream. The
  // tensors must live until then.
  using Take = std::function<void(const std::byte* bytes, int64_t size)>;
  void read(const std::vector<Tensor>& from, Stream& stream, const Take& take);
  using Give = std::function<void(std::byte* bytes, int64_t size)>;
  void write(const std::vector<Tensor>& to, Stream& stream, const Give& give);

 private:
  template <class Use>
  void each(const std::vector<Tensor>& tensors, Stream& stream, const Use& use, bool before, bool after);
  Tensor staging(const Stream& stream);

  Memory memory_;
  std::map<const Stream*, Buffer> pinned_;
};

inline int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t sum = 0;
  for (const Tensor& t : tensors) sum += t.bytes();
  return sum;
}

}  // namespace cleave::runtime
