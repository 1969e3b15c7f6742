// Scratch of a CUDA stream, allocated once and counted like other memory, so kernels do not allocate.
#pragma once
#include "device/memory.h"
#include "device/stream.h"

namespace cleave {

struct Workspace {
  Buffer device, pinned;

  void lend_to(Stream& stream) const { stream.lend(device, pinned); }
};

// Kernels use this much of a stream's scratch, or half of a smaller one; libraries use the rest.
inline constexpr int64_t kOwnScratch = int64_t{128} << 20;
// Matrix products need at most 128 MiB. The attention backward processes as many sequences at a time as fit
// and keeps 2 bytes per score: 25 MB per sequence of GPT-2 124M, 73 MB of a 7B model.
inline constexpr int64_t kKernelScratch = kOwnScratch + (int64_t{512} << 20);
inline constexpr int64_t kUpdateScratch = int64_t{32} << 20;  // enough for updates, norms and sums of units
inline constexpr int64_t kCopyScratch = int64_t{1} << 20;     // enough for casts and sums
inline constexpr int64_t kPinnedScratch = int64_t{16} << 20;  // staging of values for the host
inline constexpr int64_t kEventScratch = int64_t{64} << 10;   // pinned: enough to wait for CPU events

// Returns an empty workspace for the memory of a CPU rank. The workspace must outlive the streams that use
// it.
inline Workspace allocate_workspace(Memory& memory, int64_t device_bytes,
                                    int64_t pinned_bytes = kPinnedScratch) {
  if (!memory.device().is_cuda()) return {};
  return {
      memory.allocate(MemoryKind::device, Category::staging, DType::uint8, {device_bytes}, "kernel scratch"),
      memory.allocate(MemoryKind::pinned, Category::staging, DType::uint8, {pinned_bytes}, "pinned scratch")};
}

}  // namespace cleave
