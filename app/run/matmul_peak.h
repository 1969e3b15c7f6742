// Arithmetic speed of the machine, the reference of MFU.
#pragma once
#include "device/device.h"
#include "device/dtype.h"

namespace cleave::app {

// Returns FLOP/s of this rank in a square matrix product of the model's training type: the peak for
// mfu. Measures for some tenths of a second.
double matmul_flops_per_s(Device device, DType type);

}  // namespace cleave::app
