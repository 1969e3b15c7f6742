// What the CUDA bodies share: storage types, 16-byte packs of elements, elementwise launches, sums over a
// block. Arithmetic is in fp32 everywhere; no kernel here uses floating-point atomics, so results do not
// vary.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/range.h"
#include "device/cuda/queue.h"
#include "device/tensor.h"
#include "kernels/divisor.h"

namespace cleave::kernels::gpu {

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

// A pack is what a thread reads and writes at a time: 16 bytes of the widest of the types, so that
// neighbouring threads touch neighbouring bytes and every store fills whole sectors of memory.
template <class... T>
inline constexpr int kPackOf = 16 / int(std::max({sizeof(T)...}));
inline constexpr int kPack = 8;  // where a kernel packs 16-bit types only, or takes two words of fp32
template <int N>
using Count = std::integral_constant<int, N>;

// Whether packs may be read from all of these.
inline bool aligned(std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (reinterpret_cast<uintptr_t>(t.raw()) % 16) return false;
  return true;
}

// What a pack of N is moved in.
template <int N, class T>
using Word = std::conditional_t<(N * sizeof(T) >= 16), uint4, uint2>;

template <int N, class T>
__device__ __forceinline__ void load(float (&x)[N], const T* p) {
  if constexpr (N == 1) {
    x[0] = to_float(*p);
  } else {
    using W = Word<N, T>;
    static_assert(N * sizeof(T) % sizeof(W) == 0);
    alignas(16) T values[N];
#pragma unroll
    for (int w = 0; w < int(N * sizeof(T) / sizeof(W)); ++w)
      reinterpret_cast<W*>(values)[w] = reinterpret_cast<const W*>(p)[w];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = to_float(values[i]);
  }
}

template <int N, class T>
__device__ __forceinline__ void store(T* p, const float (&x)[N]) {
  if constexpr (N == 1) {
    *p = rounded<T>(x[0]);
  } else {
    using W = Word<N, T>;
    static_assert(N * sizeof(T) % sizeof(W) == 0);
    alignas(16) T values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = rounded<T>(x[i]);
#pragma unroll
    for (int w = 0; w < int(N * sizeof(T) / sizeof(W)); ++w)
      reinterpret_cast<W*>(p)[w] = reinterpret_cast<const W*>(values)[w];
  }
}

// A block that has no whole packs goes element by element, neighbours side by side.
template <int kWidth, class F>
__global__ void __launch_bounds__(256) each_kernel(int64_t numel, bool packed, F f) {
  constexpr int kBlock = 256 * kWidth;
  const int64_t begin = int64_t(blockIdx.x) * kBlock;
  if (packed && begin + kBlock <= numel) return f(begin + int(threadIdx.x) * kWidth, Count<kWidth>{});
  const int64_t end = begin + kBlock < numel ? begin + kBlock : numel;
#pragma unroll 1
  for (int64_t i = begin + threadIdx.x; i < end; i += 256) f(i, Count<1>{});
}

// f(i, Count<N>) for consecutive packs of [0, numel), or single elements where `packed` is false and in the
// last block.
template <int kWidth, class F>
void for_each(CudaQueue& queue, int64_t numel, bool packed, const char* op, F f) {
  if (numel == 0) return;
  each_kernel<kWidth><<<unsigned(ceil_div(numel, 256 * kWidth)), 256, 0, queue.use()>>>(numel, packed, f);
  queue.launched(op);
}

template <int kWidth, class F>
__global__ void __launch_bounds__(256)
    each_of_rows_kernel(uint32_t first_row, uint32_t packs, Divisor in_row, int width, bool packed, F f) {
  const uint32_t pack = blockIdx.x * 256u + threadIdx.x;
  if (pack >= packs) return;
  const uint32_t row = in_row.quotient(pack);
  const int column = int(pack - row * in_row.value()) * kWidth;
  if (packed) return f(first_row + row, column, Count<kWidth>{});
#pragma unroll 1
  for (int c = column; c < width && c < column + kWidth; ++c) f(first_row + row, c, Count<1>{});
}

// f(row, column, Count<N>) for the packs of every row of a matrix. packed: a row is whole packs.
template <int kWidth, class F>
void for_each_of_rows(CudaQueue& queue, int64_t rows, int64_t width, bool packed, const char* op, F f) {
  CHECK(rows < Divisor::kMost && width < Divisor::kMost, "{} of {} rows of {} elements on a GPU", op, rows,
        width);
  if (rows * width == 0) return;
  const Divisor in_row(ceil_div(width, kWidth));
  const int64_t most = (Divisor::kMost - 1) / in_row.value();
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t packs = std::min(most, rows - first) * in_row.value();
    each_of_rows_kernel<kWidth><<<unsigned(ceil_div(packs, 256)), 256, 0, queue.use()>>>(
        uint32_t(first), uint32_t(packs), in_row, int(width), packed, f);
    queue.launched(op);
  }
}

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// 2^x to 2 ulp; what is too small for a normal number becomes 0.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^x and a / b of what was rounded to T before or is afterwards: where that has 16 bits, by the hardware's
// approximations, whose error is a thousandth of that rounding's and less; powers below 2^-126 become 0.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  return sizeof(T) == 2 ? quick_exp2(x * kLog2E) : expf(x);
}
template <class T>
__device__ __forceinline__ float quotient(float a, float b) {
  return sizeof(T) == 2 ? __fdividef(a, b) : a / b;
}

// Over the lanes of a whole warp, the same value in each.
template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  return warp_reduce(x, [](float a, float b) { return a + b; });
}

// Of a NaN and a number, the number.
__device__ __forceinline__ float warp_max(float x) {
  return warp_reduce(x, [](float a, float b) { return fmaxf(a, b); });
}

// Over the whole block, the same value in every thread; `shared` has one element a warp. Threads: whole
// warps.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T x, T* shared, Combine combine) {
  x = warp_reduce(x, combine);
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

// Whether a block can have that much dynamic shared memory beside what a kernel declares, of up to 1 KiB.
inline bool fits_in_shared(const CudaQueue& queue, int64_t bytes) {
  return bytes <= queue.shared_of_block() - 1024;
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

}  // namespace cleave::kernels::gpu
