// Allocated bytes with their release function.
#pragma once
#include <cstdint>

#include "device/device.h"

namespace cleave {

struct MemoryBlock {
  void* data = nullptr;
  void (*release)(void* data, int64_t bytes) = nullptr;
};

// Returns zeroed device memory; without data if the device is out of memory.
using DeviceAllocator = MemoryBlock (*)(Device device, int64_t bytes);

}  // namespace cleave
