// Integer sums. Any order gives the same bits, so squares are added with integer atomics.
#include "kernels/cuda/device.cuh"
#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave::kernels::gpu {
namespace {

struct Round {
  long long *y, *bad;
  const float* x;
  double factor, limit;
  bool accumulate;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float v[N];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const double product = double(v[j]) * factor;
      const bool fits = fabs(product) <= limit;
      const long long nearest = fits ? __double2ll_rn(product) : 0;
      y[i + j] = accumulate ? y[i + j] + nearest : nearest;
      if (!fits) *bad = 1;
    }
  }
};

struct Back {
  float* y;
  const long long* x;
  float scale;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
#pragma unroll
    for (int j = 0; j < N; ++j) y[i + j] = __ll2float_rn(x[i + j]) * scale;
  }
};

struct AddTo {
  unsigned long long* y;
  const unsigned long long* x;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
#pragma unroll
    for (int j = 0; j < N; ++j) y[i + j] += x[i + j];
  }
};

constexpr int kThreads = 256, kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    add_squares(unsigned long long* out, const long long* x, int64_t numel) {
  __shared__ unsigned long long shared[kThreads / 32];
  unsigned long long sums[4] = {0, 0, 0, 0};
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < numel; i += step) {
    const unsigned long long size = x[i] < 0 ? 0ull - (unsigned long long)(x[i]) : (unsigned long long)(x[i]);
    const unsigned long long low = size * size, high = __umul64hi(size, size);
    sums[0] += low & 0xffffffffu, sums[1] += low >> 32;
    sums[2] += high & 0xffffffffu, sums[3] += high >> 32;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const unsigned long long sum = block_sum(sums[w], shared);
    if (threadIdx.x == 0) atomicAdd(out + w, sum);
  }
}

}  // namespace

void run(const RoundToGrid& op, Stream& stream) {
  for_each<1>(
      cuda_queue(stream), op.x.numel(), aligned({op.x}), "RoundToGrid",
      Round{as<long long>(op.y), as<long long>(op.bad), as<float>(op.x), op.factor, op.limit, op.accumulate});
}

void run(const FromGrid& op, Stream& stream) {
  for_each<1>(cuda_queue(stream), op.x.numel(), true, "FromGrid",
              Back{as<float>(op.y), as<long long>(op.x), op.scale});
}

void run(const AddIntegers& op, Stream& stream) {
  for_each<1>(cuda_queue(stream), op.x.numel(), true, "AddIntegers",
              AddTo{as<unsigned long long>(op.y), as<unsigned long long>(op.x)});
}

void run(const SumIntegerSquares& op, Stream& stream) {
  launch(Fill{.y = op.out}, stream);
  const int64_t blocks = std::min<int64_t>(kMostBlocks, ceil_div(op.x.numel(), kThreads));
  if (blocks == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  add_squares<<<unsigned(blocks), kThreads, 0, queue.use()>>>(as<unsigned long long>(op.out),
                                                              as<long long>(op.x), op.x.numel());
  queue.launched("SumIntegerSquares");
}

}  // namespace cleave::kernels::gpu
