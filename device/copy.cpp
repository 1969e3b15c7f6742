#include "device/copy.h"

#include <cstring>

#include "device/queue.h"

namespace cleave {

void copy(Tensor dst, Tensor src, Stream& stream) {
  CHECK(dst.dtype() == src.dtype() && dst.numel() == src.numel(), "copy: {} {} elements into {} {}",
        src.numel(), name_of(src.dtype()), dst.numel(), name_of(dst.dtype()));
  if (src.bytes() == 0) return;
  if (stream.queue()) return stream.queue()->copy(dst.raw(), src.raw(), src.bytes());
  stream.enqueue([dst, src] { std::memcpy(dst.raw(), src.raw(), size_t(src.bytes())); });
}

}  // namespace cleave
