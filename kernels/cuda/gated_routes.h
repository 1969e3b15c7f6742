// SwiGLU and its gradient in one kernel with a product.
#pragma once
#include "kernels/dense.h"

namespace cleave::kernels::gpu {

// Whether cuDNN is there for the stream's GPU.
bool library_gates(Stream& stream);
// In cuDNN where it is there, for 16-bit operands of one type, without a bias, of which none is empty. False:
// it has no plan for the shape, and nothing was done that the kernels apart do not redo.
bool library_gated(const DenseGated& op, Stream& stream);
bool library_gated(const DenseGatedGradient& op, Stream& stream);

}  // namespace cleave::kernels::gpu
