#include "kernels/cuda/columns.cuh"

#include "kernels/cuda/device.cuh"
#include "kernels/matmul.h"

namespace cleave::kernels::gpu {
namespace {

constexpr int kGroups = 8;

// A block of 32 columns; group g adds partial rows g, g + 8, ... in order, then the groups are added in
// order, and the sum to what there was.
template <class T>
__global__ void __launch_bounds__(32 * kGroups) add_partials(T* out, const float* partial, int64_t stride,
                                                             int64_t count, int64_t width, bool accumulate) {
  __shared__ float shared[kGroups][32];
  const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < width)
#pragma unroll 8
    for (int64_t b = threadIdx.y; b < count; b += kGroups) sum += partial[b * stride + column];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
  float total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += shared[g][threadIdx.x];
  out[column] = rounded<T>(accumulate ? to_float(out[column]) + total : total);
}

constexpr int kSides = 4;  // rows that a block adds side by side

// partial[block, column] = the sum of that column over the block's rows: those of each side in order, then
// the sides in order. A thread has the columns of one pack.
template <class T, int kWide>
__global__ void __launch_bounds__(32 * kSides)
    column_sums(float* partial, const T* x, int64_t rows, int64_t width, int64_t block_rows) {
  __shared__ float shared[kSides - 1][kWide][32];
  const int64_t column = (int64_t(blockIdx.x) * 32 + threadIdx.x) * kWide;
  const int64_t begin = blockIdx.y * block_rows, end = begin + block_rows < rows ? begin + block_rows : rows;
  float sum[kWide] = {};
  if (column < width)
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kSides) {
      float v[kWide];
      load(v, x + row * width + column);
#pragma unroll
      for (int j = 0; j < kWide; ++j) sum[j] += v[j];
    }
  if (threadIdx.y > 0)
#pragma unroll
    for (int j = 0; j < kWide; ++j) shared[threadIdx.y - 1][j][threadIdx.x] = sum[j];
  __syncthreads();
  if (threadIdx.y > 0 || column >= width) return;
#pragma unroll
  for (int j = 0; j < kWide; ++j) {
#pragma unroll
    for (int side = 1; side < kSides; ++side) sum[j] += shared[side - 1][j][threadIdx.x];
    partial[blockIdx.y * width + column + j] = sum[j];
  }
}

template <class T, int kWide>
void start(CudaQueue& queue, float* partial, const Tensor& x, int64_t block_rows) {
  const int64_t rows = x.dim(0), width = x.dim(1);
  const dim3 grid(unsigned(ceil_div(width, 32 * kWide)), unsigned(ceil_div(rows, block_rows)));
  column_sums<T, kWide>
      <<<grid, dim3(32, kSides), 0, queue.use()>>>(partial, as<T>(x), rows, width, block_rows);
}

}  // namespace

void sum_partials(CudaQueue& queue, const Tensor& out, const Partials& p, bool accumulate, const char* op) {
  if (out.numel() == 0) return;
  with_type(out.dtype(), [&](auto t) {
    using T = decltype(t);
    add_partials<T><<<unsigned(ceil_div(out.numel(), 32)), dim3(32, kGroups), 0, queue.use()>>>(
        as<T>(out), p.data, p.stride, p.count, out.numel(), accumulate);
  });
  queue.launched(op);
}

void run(const BiasGradient& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  const int64_t rows = op.dy.dim(0), width = op.dy.dim(1), block_rows = rows_of_a_block(rows, width);
  const int64_t blocks = ceil_div(rows, block_rows);
  auto* partial = static_cast<float*>(queue.scratch(blocks * width * int64_t(sizeof(float))));
  if (blocks > 0 && width > 0)
    with_type(op.dy.dtype(), [&](auto t) {
      using T = decltype(t);
      if (width % kPackOf<T> == 0 && aligned({op.dy}))
        return start<T, kPackOf<T>>(queue, partial, op.dy, block_rows);
      start<T, 1>(queue, partial, op.dy, block_rows);
    });
  queue.launched("BiasGradient");
  sum_partials(queue, op.db, {partial, width, blocks}, op.accumulate, "BiasGradient");
}

}  // namespace cleave::kernels::gpu
