// Scratch of a CUDA stream, allocated once and counted with everything else, so that no kernel allocates.
#pragma once
#include "device/memory.h"
#include "device/stream.h"

namespace cleave {

struct Workspace {
  Buffer device, pinned;

  void lend_to(Stream& stream) const { stream.lend(device, pinned); }
};

// Kernels have this much of a stream's scratch, half of it where there is less; the rest is for libraries.
inline constexpr int64_t kOwnScratch = int64_t{128} << 20;
// Matrix products need 128 MiB at most. Attention's backward works on as many sequences at a time as fit, and
// keeps two bytes a score: 25 MB a sequence of GPT-2 124M, 73 MB of a 7B model.
inline constexpr int64_t kKernelScratch = kOwnScratch + (int64_t{512} << 20);
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
