// Rows of scores in accumulators, spread over quads of lanes (mma.cuh), and their output in the forward.
#pragma once
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

namespace cleave::kernels::gpu {

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Writes this warp's 16 rows from `first` on: o divided by the rows' sums, and the lse. For each of a lane's
// two rows, `top` is the largest score in multiples of `unit`, and `part` is this lane's part of the sum.
template <class T, int D>
__device__ __forceinline__ void store_forward(const Attention<T>& a, int b, int head, int first,
                                              const float (&o)[D / 8][4], const float (&top)[2],
                                              const float (&part)[2], float unit) {
  const float sum[2] = {quad_sum(part[0]), quad_sum(part[1])};
  store_rows<T, D>(a.out + a.output(b, head), a.out_stride(), first, a.seq, a.dim, o, 1 / sum[0], 1 / sum[1]);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + half * 8;
    if (lane % 4 == 0 && row < a.seq)
      a.lse_out[a.row(b, head) + row] = fmaf(top[half], unit, logf(sum[half]));
  }
}

}  // namespace cleave::kernels::gpu
