// One warp per block of elements.
#include "kernels/block_int8.h"
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Block {
  int64_t index, begin, end;
};

__device__ __forceinline__ Block block_of(int64_t numel, int64_t block) {
  const int64_t index = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32, begin = index * block;
  return {index, begin, begin + block < numel ? begin + block : numel};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    encode(unsigned char* codes, float* scales, const T* x, int64_t numel, int64_t block) {
  const Block b = block_of(numel, block);
  if (b.begin >= numel) return;
  const int lane = int(threadIdx.x % 32);
  float largest = 0;
  bool finite = true;
  for (int64_t i = b.begin + lane; i < b.end; i += 32) {
    const float magnitude = fabsf(to_float(x[i]));
    finite = finite && magnitude <= 3.402823466e38f;  // false for a NaN
    largest = fmaxf(largest, magnitude);
  }
  largest = warp_max(largest);
  finite = __all_sync(0xffffffffu, finite);
  const float scale = finite ? __fdiv_rn(largest, 127.0f) : __int_as_float(0x7fc00000);
  if (lane == 0) scales[b.index] = scale;
  const bool zero = !(scale > 0);
  for (int64_t i = b.begin + lane; i < b.end; i += 32) {
    const float quotient = zero ? 0.0f : fminf(fmaxf(__fdiv_rn(to_float(x[i]), scale), -127.0f), 127.0f);
    codes[i] = (unsigned char)(signed char)(__float2int_rn(quotient));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    decode(T* y, const unsigned char* codes, const float* scales, int64_t numel, int64_t block) {
  const Block b = block_of(numel, block);
  if (b.begin >= numel) return;
  const float scale = scales[b.index];
  for (int64_t i = b.begin + int(threadIdx.x % 32); i < b.end; i += 32)
    y[i] = rounded<T>(__fmul_rn(float((signed char)(codes[i])), scale));
}

unsigned grid(int64_t numel, int64_t block) { return unsigned(ceil_div(ceil_div(numel, block), kWarps)); }

}  // namespace

void run(const ToBlockInt8& op, Stream& stream) {
  const int64_t numel = op.x.numel();
  if (numel == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.x.dtype(), [&](auto type) {
    using T = decltype(type);
    encode<<<grid(numel, op.block), kThreads, 0, queue.use()>>>(
        as<unsigned char>(op.codes), as<float>(op.scales), as<T>(op.x), numel, op.block);
  });
  queue.launched("ToBlockInt8");
}

void run(const FromBlockInt8& op, Stream& stream) {
  const int64_t numel = op.y.numel();
  if (numel == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.y.dtype(), [&](auto type) {
    using T = decltype(type);
    decode<<<grid(numel, op.block), kThreads, 0, queue.use()>>>(as<T>(op.y), as<unsigned char>(op.codes),
                                                                as<float>(op.scales), numel, op.block);
  });
  queue.launched("FromBlockInt8");
}

}  // namespace cleave::kernels::gpu
