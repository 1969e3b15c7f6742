#include "tests/cuda_interpreter/defects.h"

#include "kernels/cuda/swizzled_tile.cuh"

namespace interpreter {
namespace {

using namespace cleave::kernels::gpu;

constexpr int kThreads = 256, kSide = 64;

template <Left left>
__global__ void __launch_bounds__(kThreads) sum_kernel(float* out, const float* in) {
  __shared__ float values[kThreads];
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
  if (left != Left::all_threads || i < kThreads - 32) __syncthreads();
  if (left != Left::all_lanes || i % 32 != 5) sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  if (left == Left::shared_bounds) values[i + 2 * kThreads - 4] = sum;
  if (left == Left::alignment) {
    const float2 pair = *reinterpret_cast<const float2*>(in + i / 2);
    sum += pair.x + pair.y;
  }
  out[left == Left::bounds ? i + 1 : i] = sum;
}

template <Left left>
__global__ void __launch_bounds__(kWarpgroup) product_kernel(float* out, const Bf16* a, const Bf16* b) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Matrix = SwizzledTile<Bf16, kSide, kSide>;
  const Matrix left_side{shared_address(shared)}, right_side{left_side.address + Matrix::kBytes};
  left_side.fetch<kWarpgroup>(a, kSide, 0, kSide, kSide);
  right_side.fetch<kWarpgroup>(b, kSide, 0, kSide, kSide);
  commit_copies();
  wait_for_copies<0>();
  if (left != Left::product_publish) publish_shared();
  if (left != Left::product_barrier) __syncthreads();
  float first[kSide / 8][4], second[kSide / 8][4] = {};
  uint32_t rounded[kSide / 16][4];
  settle(second);  // zeros, before the fence
  begin_products();
  multiply_rows(first, left_side, 0, right_side);
  commit_products();
  if (left == Left::product_order) finish_first(1.0f, left_side.address + threadIdx.x * 4);
  if (left != Left::product_wait) wait_for_products<0>();
  settle(first);
  pack<Bf16>(rounded, first);
  if (left != Left::product_fence) begin_products();
  add_product(second, rounded, right_side);
  commit_products();
  wait_for_products<0>();
  settle(second);
  const int lane = int(threadIdx.x) % 32, row = int(threadIdx.x) / 32 * 16 + lane / 4;
  for (int n = 0; n < kSide / 8; ++n)
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * kSide + n * 8 + lane % 4 * 2 + i % 2] = second[n][i];
}

__global__ void shift_kernel(float* x, float by, int numel) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < numel) x[i] += by;
}

// Calls body(std::integral_constant<Left, left>) for one of the kinds.
template <Left... kinds, class Body>
void with(Left left, Body body) {
  ((left == kinds ? body(std::integral_constant<Left, kinds>{}) : void()), ...);
}

}  // namespace

void sums(float* out, const float* in, Left left, cudaStream_t stream) {
  with<Left::nothing, Left::barrier, Left::second_barrier, Left::warp_barrier, Left::copy_wait,
       Left::copy_barrier, Left::all_threads, Left::all_lanes, Left::bounds, Left::shared_bounds,
       Left::alignment, Left::first_write>(
      left, [&](auto kind) { sum_kernel<decltype(kind)::value><<<1, kThreads, 0, stream>>>(out, in); });
}

void products(float* out, const void* a, const void* b, Left left, cudaStream_t stream) {
  with<Left::nothing, Left::product_wait, Left::product_fence, Left::product_publish, Left::product_order,
       Left::product_barrier>(left, [&](auto kind) {
    product_kernel<decltype(kind)::value>
        <<<1, kWarpgroup, 2 * SwizzledTile<Bf16, kSide, kSide>::kBytes, stream>>>(
            out, static_cast<const Bf16*>(a), static_cast<const Bf16*>(b));
  });
}

void shift(float* x, float by, int numel, cudaStream_t stream) {
  shift_kernel<<<unsigned(numel + 255) / 256, 256, 0, stream>>>(x, by, numel);
}

}  // namespace interpreter
