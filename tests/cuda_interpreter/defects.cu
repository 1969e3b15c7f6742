#include "tests/cuda_interpreter/defects.h"

#include "kernels/cuda/swizzled_tile.cuh"

namespace interpreter {
namespace {

using namespace cleave::gpu;

constexpr int kThreads = 256;

template <Left left>
__global__ void __launch_bounds__(kThreads) sum_kernel(float* out, const float* in) {
  __shared__ float values[kThreads + 4];
  __shared__ alignas(16) float copied[kThreads];
  const int i = int(threadIdx.x);
  float sum = 0;
  if (left != Left::first_write || i != 7) values[i] = in[i];
  if (left != Left::barrier) __syncthreads();
  sum += values[(i + 100) % kThreads];
  if (left != Left::second_barrier) __syncthreads();
  values[i] = sum;
  if (left != Left::warp_barrier) __syncwarp();
  sum += values[i ^ 1];
  if (i % 4 == 0) copy_16(copied + i, in + i, true);
  commit_copies();
  if (left != Left::copy_wait) wait_for_copies<0>();
  if (left != Left::copy_barrier) __syncthreads();
  sum += copied[kThreads - 1 - i];
  if (left != Left::all_threads || i < kThreads - 1) __syncthreads();
  if (left != Left::all_lanes || i % 32 != 5) sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  if (left == Left::shared_bounds) values[i + 5] = sum;
  if (left == Left::alignment && i == 3) sum += *reinterpret_cast<const float2*>(in + i).x;
  out[left == Left::bounds ? i + 1 : i] = sum;
}

}  // namespace
}  // namespace interpreter
