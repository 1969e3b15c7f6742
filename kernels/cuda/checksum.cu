// Any order of integer sums gives the same bits, so blocks add with atomics.
#include "kernels/checksum.h"
#include "kernels/checksum_mix.h"
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 256, kMostBlocks = 1024;

template <class Word>
__global__ void __launch_bounds__(kThreads)
    add_terms(unsigned long long* out, const Word* x, int64_t first, int64_t numel) {
  __shared__ unsigned long long shared[kThreads / 32];
  unsigned long long sum = 0;
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < numel; i += step)
    sum += checksum_term(uint32_t(first + i), x[i]);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}

template <class Word>
void add(const Checksum& op, int64_t numel, int64_t first, Stream& stream) {
  const int64_t blocks = std::min<int64_t>(kMostBlocks, ceil_div(numel, kThreads));
  if (blocks == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  add_terms<<<unsigned(blocks), kThreads, 0, queue.use()>>>(
      static_cast<unsigned long long*>(op.out.raw()), static_cast<const Word*>(op.x.raw()), first, numel);
  queue.launched("Checksum");
}

}  // namespace

void run(const Checksum& op, Stream& stream) {
  switch (size_of(op.x.dtype())) {
    case 1:
      return add<uint8_t>(op, op.x.numel(), op.first, stream);
    case 2:
      return add<uint16_t>(op, op.x.numel(), op.first, stream);
    case 4:
      return add<uint32_t>(op, op.x.numel(), op.first, stream);
    default:
      return add<uint32_t>(op, 2 * op.x.numel(), 2 * op.first, stream);
  }
}

}  // namespace cleave::kernels::gpu
