// Scratch of a CUDA stream, allocated once and counted with everything else, so that no kernel allocates.
#pragma once
#include "device/memory.h"
#include "device/stream.h"

namespace cleave {

struct Workspace {
  Buffer device, pinned;

  void lend_to(Stream& stream) const { stream.lend(device, pinned); }
};

// Half of it for libraries: matrix products, and attention's backward, which works on as many sequences at a
// time as fit.
inline constexpr int64_t kKernelScratch = int64_t{256} << 20;
inline constexpr int64_t kCopyScratch = int64_t{1} << 20;     // enough for casts and sums
inline constexpr int64_t kPinnedScratch = int64_t{16} << 20;  // values that the host sees on their way
inline constexpr int64_t kEventScratch = int64_t{64} << 10;   // pinned: enough to wait for the CPU's events

// Empty for the memory of a CPU rank. The workspace must outlive the stream it is lent to.
inline Workspace allocate_workspace(Memory& memory, int64_t device_bytes,
                                    int64_t pinned_bytes = kPinnedScratch) {
  if (!memory.device().is_cuda()) return {};
  return {
      memory.allocate(MemoryKind::device, Category::staging, DType::uint8, {device_bytes}, "kernel scratch"),
      memory.allocate(MemoryKind::pinned, Category::staging, DType::uint8, {pinned_bytes}, "pinned scratch")};
}

}  // namespace cleave
