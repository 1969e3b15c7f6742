// What a machine's arithmetic reaches, to say what share of it a model's training does.
#pragma once
#include "device/device.h"
#include "device/dtype.h"

namespace cleave::app {

// FLOPs a second of this rank in a square matrix product of the type that the model is trained in: the peak
// that mfu is a share of. Measures for some tenths of a second.
double matmul_flops_per_s(Device device, DType type);

}  // namespace cleave::app
