#include "device/copy.h"

#include <cstring>

namespace cleave {

void copy(Tensor dst, Tensor src, Stream& stream) {
  CHECK(dst.dtype() == src.dtype() && dst.numel() == src.numel(), "copy: {} {} elements into {} {}",
        src.numel(), name_of(src.dtype()), dst.numel(), name_of(dst.dtype()));
  stream.enqueue([dst, src] { std::memcpy(dst.raw(), src.raw(), size_t(src.bytes())); });
}

}  // namespace cleave
