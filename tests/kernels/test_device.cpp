#include "tests/kernels/test_device.h"

#include "core/build.h"

namespace cleave::kernels {

std::vector<Device> test_devices() {
  if constexpr (build::cuda) return {Device{}, Device::cuda(0)};
  return {Device{}};
}

}  // namespace cleave::kernels
