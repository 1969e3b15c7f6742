// What Adam and LAMB keep of the gradients, by the CPU's operations in their order, so with the same bits.
#pragma once
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {

// Moving averages of the gradient and of its square.
struct MovingAverages {
  float beta1, beta2, rest1, rest2;

  template <class Op>
  static MovingAverages of(const Op& op) {
    return {op.beta1, op.beta2, 1.0f - op.beta1, 1.0f - op.beta2};
  }
  __device__ __forceinline__ void add(float g, float& m, float& v) const {
    m = fmaf(beta1, m, __fmul_rn(rest1, g));
    v = fmaf(beta2, v, __fmul_rn(__fmul_rn(rest2, g), g));
  }
};

}  // namespace cleave::kernels::gpu
