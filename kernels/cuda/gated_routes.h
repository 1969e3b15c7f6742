// SwiGLU and its gradient fused with a product in one kernel.
#pragma once
#include "kernels/dense.h"

namespace cleave::kernels::gpu {

// Returns true if cuDNN is available for the stream's GPU.
bool library_gates(Stream& stream);
// 91300 is 9.13.0; 0 without cuDNN.
int library_gates_version();
// Runs the op in cuDNN, which must be available; for non-empty 16-bit operands of one type, without a bias.
// Returns false if cuDNN has no plan for the shape; the separate kernels can then compute the op.
bool library_gated(const DenseGated& op, Stream& stream);
bool library_gated(const DenseGatedGradient& op, Stream& stream);

}  // namespace cleave::kernels::gpu
