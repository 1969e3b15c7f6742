// Bytes and how they go back, from whoever has some.
#pragma once
#include <cstdint>

#include "device/device.h"

namespace cleave {

struct MemoryBlock {
  void* data = nullptr;
  void (*release)(void* data, int64_t bytes) = nullptr;
};

// Gives zeroed memory of a device; without data when it has none left.
using DeviceAllocator = MemoryBlock (*)(Device device, int64_t bytes);

}  // namespace cleave
