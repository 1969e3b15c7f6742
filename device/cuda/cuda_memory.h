// Memory of a CUDA rank.
#pragma once
#include "device/memory_block.h"

namespace cleave {

// Calls set_cuda_environment(RanksHere::one) once per process.
void before_cuda_starts();

// Returns zeroed memory of the GPU; without data if the GPU is out of memory. Throws Error(usage) if the GPU
// is unusable.
MemoryBlock cuda_allocate(Device device, int64_t bytes);
// Blocks until memory of the GPU from any allocator is zero. Throws Error(usage) if the GPU is unusable.
void cuda_clear(Device device, void* data, int64_t bytes);

// Returns zeroed page-locked host memory that all GPUs can access; without data if the machine cannot lock so
// much memory.
MemoryBlock cuda_allocate_pinned(Device device, int64_t bytes);

// Returns a number that identifies this GPU (or its MIG slice) on all hosts; 0 for the CPU.
int64_t cuda_identity(Device device);

}  // namespace cleave
