#include "device/copy.h"

#include <cstring>

#include "device/queue.h"

namespace cleave {

void copy(Tensor dst, Tensor src, Stream& stream) {
  CHECK(dst.dtype() == src.dtype() && dst.numel() == src.numel(), "copy: {} {} elements into {} {}",
        src.numel(), name_of(src.dtype()), dst.numel(), name_of(dst.dtype()));
  if (src.bytes() == 0) return;
  // Between two places of the host CUDA would not wait for the stream.
  const bool gpu = dst.memory() == MemoryKind::device || src.memory() == MemoryKind::device;
  if (stream.on_cuda() && gpu) return stream.queue()->copy(dst.raw(), src.raw(), src.bytes());
  stream.enqueue([dst, src] { std::memcpy(dst.raw(), src.raw(), size_t(src.bytes())); });
}

}  // namespace cleave
