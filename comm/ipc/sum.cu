#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "comm/ipc/ipc.h"
#include "comm/ipc/sum.h"
#include "device/cuda/check.h"

namespace cleave::comm {
namespace {

struct Sources {
  const void* of[kMostIpcRanks];
  int count;
};

// Widens 16-bit floats to fp32; other types are unchanged.
template <class T>
__device__ __forceinline__ auto widened(T x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __bfloat162float(x);
  else if constexpr (std::is_same_v<T, __half>)
    return __half2float(x);
  else
    return x;
}

template <class T, class A>
__device__ __forceinline__ T rounded(A x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else
    return x;
}

struct Sum {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

// First of equal values; NaN counts as missing.
struct Max {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return b > a || a != a ? b : a;
  }
};

constexpr int kThreads = 256;

// Each thread reduces N adjacent elements, with one read if they fill 16 bytes. `out` may be a source.
template <class How, class T, int N>
__global__ void __launch_bounds__(kThreads) reduce_kernel(T* out, Sources sources, int64_t numel) {
  const int64_t step = int64_t(gridDim.x) * kThreads * N;
  for (int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * N; i < numel; i += step) {
    decltype(widened(T{})) joined[N];
    alignas(16) T values[N];
#pragma unroll 2
    for (int s = 0; s < sources.count; ++s) {
      const T* source = static_cast<const T*>(sources.of[s]) + i;
      if constexpr (N * sizeof(T) == 16)
        *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(source);
      else
        values[0] = *source;
#pragma unroll
      for (int j = 0; j < N; ++j)
        joined[j] = s == 0 ? widened(values[j]) : How{}(joined[j], widened(values[j]));
    }
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = rounded<T>(joined[j]);
    if constexpr (N * sizeof(T) == 16)
      *reinterpret_cast<uint4*>(out + i) = *reinterpret_cast<uint4*>(values);
    else
      out[i] = values[0];
  }
}

template <class How, class T, int N>
void launch_reduce(T* out, Sources sources, int64_t numel, cudaStream_t stream, int device) {
  if (numel == 0) return;
  const int64_t blocks = std::min<int64_t>((numel + kThreads * N - 1) / (kThreads * N), 2048);
  reduce_kernel<How, T, N><<<unsigned(blocks), kThreads, 0, stream>>>(out, sources, numel);
  cuda_check(cudaGetLastError(), "the reduction over ranks", device);
}

// Uses whole packs if all pointers are aligned, and single elements for the rest.
template <class How, class T>
void reduce(void* to, Sources sources, int64_t numel, cudaStream_t stream, int device) {
  constexpr int kPack = 16 / sizeof(T);
  T* out = static_cast<T*>(to);
  bool aligned = reinterpret_cast<uintptr_t>(out) % 16 == 0;
  for (int s = 0; s < sources.count; ++s)
    aligned = aligned && reinterpret_cast<uintptr_t>(sources.of[s]) % 16 == 0;
  const int64_t packed = aligned ? numel / kPack * kPack : 0;
  launch_reduce<How, T, kPack>(out, sources, packed, stream, device);
  for (int s = 0; s < sources.count; ++s) sources.of[s] = static_cast<const T*>(sources.of[s]) + packed;
  launch_reduce<How, T, 1>(out + packed, sources, numel - packed, stream, device);
}

// Adds integers as unsigned, so that they wrap, and compares them as signed.
template <class T, class Compared = T>
void reduce_by(Reduction how, void* out, Sources sources, int64_t numel, cudaStream_t stream, int device) {
  if (how == Reduction::max) return reduce<Max, Compared>(out, sources, numel, stream, device);
  reduce<Sum, T>(out, sources, numel, stream, device);
}

}  // namespace

void reduce_in_order_on_gpu(Reduction how, DType dtype, void* out, std::span<const std::byte* const> sources,
                            int64_t numel, cudaStream_t stream, int device) {
  CHECK(sources.size() <= size_t(kMostIpcRanks), "a reduction of {} ranks", sources.size());
  Sources all{};
  for (const std::byte* source : sources) all.of[all.count++] = source;
  switch (dtype) {
    case DType::fp32:
      return reduce_by<float>(how, out, all, numel, stream, device);
    case DType::fp64:
      return reduce_by<double>(how, out, all, numel, stream, device);
    case DType::fp16:
      return reduce_by<__half>(how, out, all, numel, stream, device);
    case DType::bf16:
      return reduce_by<__nv_bfloat16>(how, out, all, numel, stream, device);
    case DType::int32:
      return reduce_by<unsigned, int>(how, out, all, numel, stream, device);
    case DType::int64:
      return reduce_by<unsigned long long, long long>(how, out, all, numel, stream, device);
    case DType::uint16:
    case DType::uint8:
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      break;
  }
  fail(Exit::internal, "{} cannot be reduced", name_of(dtype));
}

}  // namespace cleave::comm
