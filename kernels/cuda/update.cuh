// Shared parts of parameter updates: operands, moving averages, launch. Operations and their order equal
// those of the CPU bodies, so the bits are the same.
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/update.h"

namespace cleave::kernels::gpu {

template <class G, class C, class Numbers>
struct UpdateOf {
  float *param, *states[2];
  C* copy;
  const G* grad;
  Numbers with;
};

__device__ __forceinline__ void add(const AverageNumbers& a, float g, float& m, float& v) {
  m = fmaf(a.beta1, m, __fmul_rn(a.rest1, g));
  v = fmaf(a.beta2, v, __fmul_rn(__fmul_rn(a.rest2, g), g));
}

template <class G, class C, class Op>
UpdateOf<G, C, decltype(std::declval<Op>().numbers())> operands_of(const Op& op, const Tensor& first,
                                                                   const Tensor& second, const Tensor& copy,
                                                                   const Tensor& grad) {
  return {.param = as<float>(op.param),
          .states = {as<float>(first), as<float>(second)},
          .copy = as<C>(copy),
          .grad = as<G>(grad),
          .with = op.numbers()};
}

}  // namespace cleave::kernels::gpu
