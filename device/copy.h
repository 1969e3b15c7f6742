// Movement of bytes between memories, in stream order.
#pragma once
#include <vector>

#include "device/stream.h"
#include "device/tensor.h"

namespace cleave {

// dst = src, equal types and numel, any memory kinds. Both must live until the work is done.
void copy(Tensor dst, Tensor src, Stream& stream);

// The elements as the stream's work so far leaves them, in memory of the host; waits for that work.
template <class T>
std::vector<T> to_host(const Tensor& x, Stream& stream) {
  std::vector<T> values(static_cast<size_t>(x.numel()));
  copy(Tensor(values.data(), dtype_of<T>(), {x.numel()}, MemoryKind::host), x, stream);
  stream.synchronize();
  return values;
}

}  // namespace cleave
