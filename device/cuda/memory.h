// Memory of a CUDA rank.
#pragma once
#include "device/memory_block.h"

namespace cleave {

// set_cuda_environment(RanksHere::one), once in a process.
void before_cuda_starts();

// Zeroed memory of that GPU; without data when the GPU has none left. Throws Error(usage) where it cannot be
// used.
MemoryBlock cuda_allocate(Device device, int64_t bytes);
// Waits until memory of that GPU, wherever it came from, is zero. Error(usage) where it cannot be.
void cuda_clear(Device device, void* data, int64_t bytes);

// Zeroed page-locked host memory that every GPU can reach; without data when the machine refuses to lock so
// much.
MemoryBlock cuda_allocate_pinned(Device device, int64_t bytes);

// A number that only this GPU has, on this and every host, and its part of it under MIG; 0 for the CPU.
int64_t cuda_identity(Device device);

}  // namespace cleave
