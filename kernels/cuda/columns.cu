#include "kernels/cuda/columns.cuh"

#include "kernels/cuda/device.cuh"
#include "kernels/matmul.h"

namespace cleave::kernels::gpu {
namespace {

constexpr int kGroups = 32;

// Arguments of sums of one width; one row of blocks per sum.
template <class T>
struct Added {
  T* out[2];
  const float* partial[2];
  bool accumulate[2];
  int64_t stride, count, width;
};

// A block sums 32 columns. Group g adds partial rows g, g + 32, ... in order, then the groups are added in
// order, and last the previous value. Few blocks read little data each, therefore many threads load it
// concurrently.
template <class T>
__global__ void __launch_bounds__(32 * kGroups) add_partials(Added<T> a) {
  __shared__ float shared[kGroups][32];
  const int which = int(blockIdx.y);
  const float* partial = which == 0 ? a.partial[0] : a.partial[1];
  const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < a.width)
#pragma unroll 8
    for (int64_t b = threadIdx.y; b < a.count; b += kGroups) sum += partial[b * a.stride + column];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= a.width) return;
  float total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) total += shared[g][threadIdx.x];
  T* out = which == 0 ? a.out[0] : a.out[1];
  const bool accumulate = which == 0 ? a.accumulate[0] : a.accumulate[1];
  out[column] = rounded<T>(accumulate ? to_float(out[column]) + total : total);
}

constexpr int kSides = 4;  // rows that a block adds side by side

// partial[block, column] = sum of the column over the block's rows: the rows of each side in order, then the
// sides in order. A thread has the columns of one pack.
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

void sum_partials(CudaQueue& queue, std::initializer_list<ColumnSums> sums, const char* op) {
  CHECK(sums.size() == 1 || sums.size() == 2, "{}: {} sums of columns in one launch", op, sums.size());
  const ColumnSums &first = *sums.begin(), &other = *(sums.end() - 1);
  const int64_t width = first.out.numel();
  if (width == 0) return;
  CHECK(other.out.numel() == width && other.out.dtype() == first.out.dtype() &&
            other.partials.stride == first.partials.stride && other.partials.count == first.partials.count,
        "{}: two sums of columns that differ in shape", op);
  with_type(first.out.dtype(), [&](auto t) {
    using T = decltype(t);
    const dim3 grid(unsigned(ceil_div(width, 32)), unsigned(sums.size()));
    add_partials<T><<<grid, dim3(32, kGroups), 0, queue.use()>>>({{as<T>(first.out), as<T>(other.out)},
                                                                  {first.partials.data, other.partials.data},
                                                                  {first.accumulate, other.accumulate},
                                                                  first.partials.stride,
                                                                  first.partials.count,
                                                                  width});
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
  sum_partials(queue, {{op.db, {partial, width, blocks}, op.accumulate}}, "BiasGradient");
}

}  // namespace cleave::kernels::gpu
