#include "device/copy.h"

#include <algorithm>
#include <cstring>

#include "device/queue.h"

namespace cleave {

void copy(Tensor dst, Tensor src, Stream& stream) {
  CHECK(dst.dtype() == src.dtype() && dst.numel() == src.numel(), "copy: {} {} elements into {} {}",
        src.numel(), name_of(src.dtype()), dst.numel(), name_of(dst.dtype()));
  if (src.bytes() == 0) return;
  // For copies between host addresses, CUDA would not wait for the stream.
  const bool gpu = dst.memory() == MemoryKind::device || src.memory() == MemoryKind::device;
  if (stream.on_cuda() && gpu) {
    const auto way = dst.memory() == MemoryKind::host   ? &Queue::download
                     : src.memory() == MemoryKind::host ? &Queue::upload
                                                        : &Queue::copy;
    return (stream.queue()->*way)(dst.raw(), src.raw(), src.bytes());
  }
  stream.enqueue([dst, src] { std::memcpy(dst.raw(), src.raw(), size_t(src.bytes())); });
}

void copy_to_host(const Tensor& dst, const Tensor& src, Stream& stream) {
  if (!stream.on_cuda() || src.memory() != MemoryKind::device) {
    copy(dst, src, stream);
    return stream.synchronize();
  }
  const Tensor pinned = stream.pinned();
  const int64_t most = pinned.bytes() / size_of(src.dtype());
  Range r;
  do {
    r = {r.end, std::min(src.numel(), r.end + most)};
    const Tensor way(pinned.raw(), src.dtype(), {r.size()}, MemoryKind::pinned), to = dst.slice(r);
    copy(way, src.slice(r), stream);
    stream.synchronize();
    if (r.size() > 0) std::memcpy(to.raw(), way.raw(), size_t(to.bytes()));
  } while (r.end < src.numel());
}

}  // namespace cleave
