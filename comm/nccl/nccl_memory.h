// Memory from NCCL's allocator. After registration, GPUs of a host can access it in place, and NVLink SHARP
// can reduce it in the switch; memory of cudaMalloc supports neither.
#pragma once
#include "device/memory_block.h"

namespace cleave::comm {

// Allocates zeroed GPU memory; a DeviceAllocator. If NCCL fails, prints one line to stderr and uses
// cudaMalloc from then on.
MemoryBlock nccl_allocate(Device device, int64_t bytes);

// True if NCCL made all allocations of this process so far.
bool nccl_gave_all();

}  // namespace cleave::comm
