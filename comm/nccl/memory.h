// Memory of NCCL's own allocator. Registered, it is what GPUs of a host may read and write in place, and what
// NVLink SHARP adds up in the switch; memory of cudaMalloc is neither.
#pragma once
#include "device/memory_block.h"

namespace cleave::comm {

// Zeroed memory of that GPU, as a DeviceAllocator. Where NCCL refuses, one line on stderr says so, and from
// then on it is cudaMalloc's.
MemoryBlock nccl_allocate(Device device, int64_t bytes);

// NCCL has not refused any in this process.
bool nccl_gave_all();

}  // namespace cleave::comm
