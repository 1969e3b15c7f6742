// What the CUDA bodies share: storage types, 16-byte packs of elements, elementwise launches, sums over a
// block. Arithmetic is in fp32 everywhere; no kernel here uses floating-point atomics, so results do not
// vary.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/range.h"
#include "device/cuda/queue.h"
#include "device/tensor.h"

namespace cleave::gpu {

using Bf16 = __nv_bfloat16;
using Fp16 = __half;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(double x) { return float(x); }
__device__ __forceinline__ float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(Fp16 x) { return __half2float(x); }

// Rounded to nearest, ties to even, as on the CPU.
template <class T>
__device__ __forceinline__ T rounded(float x) {
  if constexpr (std::is_same_v<T, Bf16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, Fp16>)
    return __float2half_rn(x);
  else
    return T(x);
}

template <class T>
T* as(const Tensor& x) {
  return static_cast<T*>(x.raw());
}

// Calls body with a value of the device's type behind a training float type.
template <class Body>
void with_type(DType type, Body body) {
  switch (type) {
    case DType::fp32:
      return body(float{});
    case DType::bf16:
      return body(Bf16{});
    case DType::fp16:
      return body(Fp16{});
    default:
      fail(Exit::internal, "{} is not a training float type (fp32, fp16 or bf16)", name_of(type));
  }
}

// One pack is 16 bytes of a 16-bit type, twice that of fp32.
inline constexpr int kPack = 8;
template <int N>
using Count = std::integral_constant<int, N>;

// Whether packs may be read from all of these.
inline bool aligned(std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (reinterpret_cast<uintptr_t>(t.raw()) % 16) return false;
  return true;
}

template <int N, class T>
__device__ __forceinline__ void load(float (&x)[N], const T* p) {
  if constexpr (N == 1) {
    x[0] = to_float(*p);
  } else {
    alignas(16) T values[N];
#pragma unroll
    for (int w = 0; w < int(N * sizeof(T) / 16); ++w)
      reinterpret_cast<uint4*>(values)[w] = reinterpret_cast<const uint4*>(p)[w];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = to_float(values[i]);
  }
}

template <int N, class T>
__device__ __forceinline__ void store(T* p, const float (&x)[N]) {
  if constexpr (N == 1) {
    *p = rounded<T>(x[0]);
  } else {
    alignas(16) T values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = rounded<T>(x[i]);
#pragma unroll
    for (int w = 0; w < int(N * sizeof(T) / 16); ++w)
      reinterpret_cast<uint4*>(p)[w] = reinterpret_cast<const uint4*>(values)[w];
  }
}

template <class F>
__global__ void __launch_bounds__(256) each_kernel(int64_t numel, bool packed, F f) {
  const int64_t begin = (int64_t(blockIdx.x) * 256 + threadIdx.x) * kPack;
  if (packed && begin + kPack <= numel) return f(begin, Count<kPack>{});
  const int64_t end = begin + kPack < numel ? begin + kPack : numel;
  for (int64_t i = begin; i < end; ++i) f(i, Count<1>{});
}

// f(i, Count<N>) for consecutive packs of [0, numel), or single elements where `packed` is false and at the
// end.
template <class F>
void for_each(CudaQueue& queue, int64_t numel, bool packed, const char* op, F f) {
  if (numel == 0) return;
  each_kernel<<<unsigned(ceil_div(numel, 256 * kPack)), 256, 0, queue.use()>>>(numel, packed, f);
  queue.launched(op);
}

// Over the whole block, the same value in every thread; `shared` has one element a warp. Threads: whole
// warps.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T x, T* shared, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (blockDim.x == 32) return x;
  __syncthreads();  // the last use of shared is over
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) x = combine(x, shared[w]);
  return x;
}

template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  return block_reduce(x, shared, [](T a, T b) { return a + b; });
}

// Threads of a block that walks over `width` elements in packs.
inline unsigned row_threads(int64_t width, int64_t most = 256) {
  return unsigned(std::min<int64_t>(most, round_up(std::max<int64_t>(1, ceil_div(width, kPack)), 32)));
}

// Lets a kernel use that much dynamic shared memory; what it declares besides also counts for the 48 KiB that
// need no permission.
template <class Kernel>
void allow_shared(CudaQueue& queue, Kernel kernel, int64_t bytes, const char* op) {
  queue.use();
  if (bytes > 32 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  queue.launched(op);
}

}  // namespace cleave::gpu
