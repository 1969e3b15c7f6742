// Converts tensors to arguments of the bodies.
#pragma once
#include "device/tensor.h"
#include "kernels/cpu/bodies.h"

namespace cleave::kernels::cpu {

inline Vec vec(const Tensor& t) { return {t.raw(), t.dtype()}; }

}  // namespace cleave::kernels::cpu
