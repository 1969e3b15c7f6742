// Shared parts of the CUDA bodies: storage types, 16-byte packs of elements, elementwise launches, block
// sums. All arithmetic is in fp32; no kernel here uses floating-point atomics, so results are reproducible.
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

// Rounds to nearest, ties to even, as on the CPU.
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

// Calls body with a value of the device type of a training float type.
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

// Elements that a thread reads and writes at a time: 16 bytes of the widest type, so neighboring threads
// access neighboring bytes and every store fills whole memory sectors.
template <class... T>
inline constexpr int kPackOf = 16 / int(std::max({sizeof(T)...}));
inline constexpr int kPack = 8;  // for kernels that pack 16-bit types only, or use two words of fp32
template <int N>
using Count = std::integral_constant<int, N>;

// Returns true if all tensors can be accessed in packs.
inline bool aligned(std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (reinterpret_cast<uintptr_t>(t.raw()) % 16) return false;
  return true;
}

// Memory word for a pack of N.
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

// A block without whole packs processes single elements, with neighboring threads on neighboring elements.
template <int kWidth, class F>
__global__ void __launch_bounds__(256) each_kernel(int64_t numel, bool packed, F f) {
  constexpr int kBlock = 256 * kWidth;
  const int64_t begin = int64_t(blockIdx.x) * kBlock;
  if (packed && begin + kBlock <= numel) return f(begin + int(threadIdx.x) * kWidth, Count<kWidth>{});
  const int64_t end = begin + kBlock < numel ? begin + kBlock : numel;
#pragma unroll 1
  for (int64_t i = begin + threadIdx.x; i < end; i += 256) f(i, Count<1>{});
}

// Calls f(i, Count<N>) for consecutive packs of [0, numel); for single elements if `packed` is false, and in
// the last block.
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

// Calls f(row, column, Count<N>) for the packs of every row of a matrix. packed: a row is whole packs.
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

// 2^x to 2 ulp; subnormal results become 0.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^x and a / b of operands or results that are rounded to T. A 16-bit T uses the hardware's approximations,
// with an error of at most a thousandth of that rounding; powers below 2^-126 become 0.
template <class T>
__device__ __forceinline__ float exponential(float x) {
  return sizeof(T) == 2 ? quick_exp2(x * kLog2E) : expf(x);
}
template <class T>
__device__ __forceinline__ float quotient(float a, float b) {
  return sizeof(T) == 2 ? __fdividef(a, b) : a / b;
}

// Reduces over the lanes of a whole warp; all lanes get the result.
template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  return warp_reduce(x, [](float a, float b) { return a + b; });
}

// Ignores NaN if the other value is a number.
__device__ __forceinline__ float warp_max(float x) {
  return warp_reduce(x, [](float a, float b) { return fmaxf(a, b); });
}

// Reduces over the whole block; all threads get the result. `shared` has one element per warp. The block must
// have whole warps.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T x, T* shared, Combine combine) {
  x = warp_reduce(x, combine);
  if (blockDim.x == 32) return x;
  __syncthreads();  // previous reads of shared are done
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

// Number of threads of a block that processes `width` elements in packs.
inline unsigned row_threads(int64_t width, int64_t most = 256) {
  return unsigned(std::min<int64_t>(most, round_up(std::max<int64_t>(1, ceil_div(width, kPack)), 32)));
}

// Returns true if a block can have this much dynamic shared memory in addition to up to 1 KiB declared by a
// kernel.
inline bool fits_in_shared(const CudaQueue& queue, int64_t bytes) {
  return bytes <= queue.shared_of_block() - 1024;
}

// Allows a kernel to use this much dynamic shared memory. The kernel's declared memory also counts toward the
// 48 KiB that need no permission.
template <class Kernel>
void allow_shared(CudaQueue& queue, Kernel kernel, int64_t bytes, const char* op) {
  queue.use();
  if (bytes > 32 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  queue.launched(op);
}

}  // namespace cleave::kernels::gpu
