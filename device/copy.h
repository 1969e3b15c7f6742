// Movement of bytes between memories, in stream order.
#pragma once
#include <vector>

#include "device/stream.h"
#include "device/tensor.h"

namespace cleave {

// dst = src, equal types and numel, any memory kinds. Both must live until the work is done.
void copy(Tensor dst, Tensor src, Stream& stream);

// The elements as the stream's work so far leaves them, in memory of the host; waits for that work, and
// throws what went wrong in it. From a GPU they go by way of what the stream was lent.
void copy_to_host(const Tensor& dst, const Tensor& src, Stream& stream);
template <class T>
std::vector<T> to_host(const Tensor& x, Stream& stream) {
  std::vector<T> values(static_cast<size_t>(x.numel()));
  copy_to_host(Tensor(values.data(), dtype_of<T>(), {x.numel()}, MemoryKind::host), x, stream);
  return values;
}

}  // namespace cleave
