// Sums of flat tensors in double: one partial sum per 4096 elements, then the partial sums in a fixed
// pattern. The bits depend neither on the grid nor on the GPU, and appended zeros do not change them.
#include "kernels/cuda/device.cuh"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

constexpr int kBlock = 4096, kThreads = 256, kLastThreads = 1024;

template <bool kSquares, int N>
__device__ __forceinline__ double add_to(double sum, const float (&v)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) sum = kSquares ? fma(double(v[j]), double(v[j]), sum) : sum + double(v[j]);
  return sum;
}

template <class T, bool kSquares>
__global__ void __launch_bounds__(kThreads)
    partial_sums(double* partial, const T* x, int64_t numel, bool packed) {
  __shared__ double shared[kThreads / 32];
  double sum = 0;
#pragma unroll
  for (int piece = 0; piece < kBlock / (kThreads * kPack); ++piece) {
    const int64_t i = int64_t(blockIdx.x) * kBlock + (piece * kThreads + int(threadIdx.x)) * kPack;
    if (packed && i + kPack <= numel) {
      float v[kPack];
      load(v, x + i);
      sum = add_to<kSquares>(sum, v);
    } else {
      for (int64_t j = i; j < i + kPack && j < numel; ++j) {
        float v[1];
        load(v, x + j);
        sum = add_to<kSquares>(sum, v);
      }
    }
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kLastThreads)
    sum_of_partials(double* out, const double* partial, int64_t count) {
  __shared__ double shared[kLastThreads / 32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kLastThreads) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *out = sum;
}

template <bool kSquares>
void total(const Tensor& out, const Tensor& x, Stream& stream, const char* op) {
  CudaQueue& queue = cuda_queue(stream);
  const int64_t blocks = ceil_div(x.numel(), kBlock);
  auto* partial = static_cast<double*>(queue.scratch(blocks * int64_t(sizeof(double))));
  if (blocks > 0)
    with_type(x.dtype(), [&](auto t) {
      using T = decltype(t);
      partial_sums<T, kSquares>
          <<<unsigned(blocks), kThreads, 0, queue.use()>>>(partial, as<T>(x), x.numel(), aligned({x}));
    });
  sum_of_partials<<<1, kLastThreads, 0, queue.use()>>>(as<double>(out), partial, blocks);
  queue.launched(op);
}

}  // namespace

void run(const SumSquares& op, Stream& stream) { total<true>(op.out, op.x, stream, "SumSquares"); }
void run(const Sum& op, Stream& stream) { total<false>(op.out, op.x, stream, "Sum"); }

}  // namespace cleave::kernels::gpu
