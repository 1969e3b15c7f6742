// Copies between memories, in stream order.
#pragma once
#include <vector>

#include "device/stream.h"
#include "device/tensor.h"

namespace cleave {

// Copies src to dst. Types and numel must be equal; memory kinds may differ. Both must live until the work is
// done.
void copy(Tensor dst, Tensor src, Stream& stream);

// Copies to host memory after the earlier work of the stream. Blocks until the copy is done and throws the
// stream's errors. Copies from a GPU use the stream's pinned workspace.
void copy_to_host(const Tensor& dst, const Tensor& src, Stream& stream);
template <class T>
std::vector<T> to_host(const Tensor& x, Stream& stream) {
  std::vector<T> values(static_cast<size_t>(x.numel()));
  copy_to_host(Tensor(values.data(), dtype_of<T>(), {x.numel()}, MemoryKind::host), x, stream);
  return values;
}

}  // namespace cleave
