// Encodes 8-bit floats, with 16-byte reads and writes of at least four codes. For a transposed x, a block
// transposes tiles of codes in shared memory.
#include <cuda_fp8.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/product.h"
#include "kernels/fp8.h"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 64, kTermsOfTile = 128;
constexpr int64_t kMostBlocks = 16 * 132;  // two rounds of eight for each multiprocessor of the largest GPUs
constexpr float kLargestFloat = 3.402823466e38f;

// Kernel arguments of an op.
struct Encoding {
  uint8_t* codes;
  float* scales;
  float* seen;           // may be null
  const float* history;  // null: one scale per row
  int64_t rows, terms, stride;
  int steps;  // of the history
  float unit;
};

// fp8_scale() of device/fp8.h.
template <bool e5m2>
__device__ __forceinline__ float scale_of(float largest) {
  const int exponent = int(__float_as_uint(largest) >> 23 & 0xffu) - 127 - ((e5m2 ? kE5M2 : kE4M3).top() - 1);
  return __uint_as_float(uint32_t(min(max(exponent, -100), 100) + 127) << 23);
}

template <bool e5m2>
__device__ __forceinline__ uint8_t code_of(float x) {
  if (!(fabsf(x) <= kLargestFloat)) return kFp8NaN;
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

__device__ __forceinline__ float of_history(const Encoding& e) {
  float largest = 0;
  for (int i = int(threadIdx.x % 32); i < e.steps; i += 32) largest = fmaxf(largest, e.history[i] * e.unit);
  return warp_max(largest);
}

// Updates `seen` with the maximum over the block. Magnitudes are at least 0, so their bits are ordered like
// integers; a negative integer means never seen.
__device__ __forceinline__ void note(const Encoding& e, float largest, float* most) {
  if (!e.seen) return;
  largest = block_reduce(largest, most, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(e.seen), __float_as_int(largest / e.unit));
}

// Codes of two numbers, the first in the low byte.
template <bool e5m2>
__device__ __forceinline__ uint32_t codes_of(float a, float b) {
#if __CUDA_ARCH__ >= 890
  const auto finite = [](float x) { return fabsf(x) <= kLargestFloat ? x : __uint_as_float(0x7fffffffu); };
  return __nv_cvt_float2_to_fp8x2(make_float2(finite(a), finite(b)), __NV_SATFINITE,
                                  e5m2 ? __NV_E5M2 : __NV_E4M3);
#else
  return code_of<e5m2>(a) | uint32_t(code_of<e5m2>(b)) << 8;
#endif
}

template <bool e5m2, int N>
__device__ __forceinline__ void store_codes(uint8_t* to, const float (&x)[N], float factor) {
  if constexpr (N == 1) {
    *to = code_of<e5m2>(x[0] * factor);
  } else {
    static_assert(N == kPack);
    uint32_t words[N / 4];
#pragma unroll
    for (int w = 0; w < N / 4; ++w)
      words[w] = codes_of<e5m2>(x[4 * w] * factor, x[4 * w + 1] * factor) |
                 codes_of<e5m2>(x[4 * w + 2] * factor, x[4 * w + 3] * factor) << 16;
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  }
}

template <int N>
__device__ __forceinline__ float largest_of(const float (&x)[N], float largest) {
#pragma unroll
  for (int i = 0; i < N; ++i) largest = fmaxf(largest, fabsf(x[i]));
  return largest;
}

// Loads a pack of a row of x; zeros after its terms, which are whole packs.
template <int N, class T>
__device__ __forceinline__ void load_of_row(float (&x)[N], const Encoding& e, const T* from, int64_t row,
                                            int64_t term) {
  if (term < e.terms) return load<N>(x, from + row * e.terms + term);
#pragma unroll
  for (float& value : x) value = 0;
}

// Loads a pack of x for the code at `at`. An unsigned division needs fewer registers.
template <int N, class T>
__device__ __forceinline__ void load_for(float (&x)[N], const Encoding& e, const T* from, int64_t at) {
  if (e.terms == e.stride) return load<N>(x, from + at);
  const auto row = int64_t(uint64_t(at) / uint64_t(e.stride));
  load_of_row(x, e, from, row, at - row * e.stride);
}

// With the single scale of a history, rows are processed consecutively, and packs go to threads in turn.
template <class T, bool e5m2, int kWidth>
__global__ void __launch_bounds__(kThreads) encode_all(Encoding e, const T* from) {
  __shared__ float most[kWarps];
  const float scale = scale_of<e5m2>(of_history(e)), factor = 1 / scale;
  if (blockIdx.x == 0 && threadIdx.x == 0) e.scales[0] = scale;
  float largest = 0;
  const int64_t codes = e.rows * e.stride, step = int64_t(gridDim.x) * kThreads * kWidth;
  for (int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kWidth; at < codes; at += step) {
    float x[kWidth];
    load_for(x, e, from, at);
    largest = largest_of(x, largest);
    store_codes<e5m2>(e.codes + at, x, factor);
  }
  note(e, largest, most);
}

// With a scale per row, one block reads a row twice, the second time from the cache.
template <class T, bool e5m2, int kWidth>
__global__ void __launch_bounds__(kThreads) encode_rows(Encoding e, const T* from) {
  __shared__ float most[kWarps];
  const int64_t begin = int64_t(blockIdx.x) * e.stride;
  float largest = 0, x[kWidth];
  for (int64_t t = int64_t(threadIdx.x) * kWidth; t < e.stride; t += kThreads * kWidth) {
    load_of_row(x, e, from, blockIdx.x, t);
    largest = largest_of(x, largest);
  }
  largest = block_reduce(largest, most, [](float a, float b) { return fmaxf(a, b); });
  const float scale = scale_of<e5m2>(largest), factor = 1 / scale;
  if (threadIdx.x == 0) e.scales[blockIdx.x] = scale;
  for (int64_t t = int64_t(threadIdx.x) * kWidth; t < e.stride; t += kThreads * kWidth) {
    load_of_row(x, e, from, blockIdx.x, t);
    store_codes<e5m2>(e.codes + begin + t, x, factor);
  }
  note(e, largest, most);
}

// Loads eight neighbors of a row of x, which are one term of eight rows of codes; zeros outside of x.
template <int kWidth, class T>
__device__ __forceinline__ void load_terms(float (&x)[kPack], const Encoding& e, const T* from, int64_t term,
                                           int64_t row) {
  if constexpr (kWidth == kPack) {
    if (term < e.terms && row < e.rows) return load<kPack>(x, from + term * e.rows + row);
#pragma unroll
    for (float& value : x) value = 0;
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      x[i] = term < e.terms && row + i < e.rows ? to_float(from[term * e.rows + row + i]) : 0;
  }
}

// Computes the bits of the largest magnitude of each row of codes, for transposed x. A block has kColumns
// rows and a part of the terms.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    largest_of_columns(Encoding e, const T* from, int* largest, int64_t terms_each) {
  __shared__ float most[kWarps][kColumns];
  const int warp = int(threadIdx.x / 32), group = int(threadIdx.x % 8) * kPack, term = int(threadIdx.x / 8);
  const int64_t row = int64_t(blockIdx.x) * kColumns + group, first = int64_t(blockIdx.y) * terms_each;
  const int64_t last = min(first + terms_each, e.terms);
  float seen[kPack] = {}, x[kPack];
  for (int64_t t = first + term; t < last; t += kThreads / 8) {
    load_terms<kWidth>(x, e, from, t, row);
#pragma unroll
    for (int i = 0; i < kPack; ++i) seen[i] = fmaxf(seen[i], fabsf(x[i]));
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
#pragma unroll
    for (int step = 8; step < 32; step *= 2)
      seen[i] = fmaxf(seen[i], __shfl_xor_sync(0xffffffffu, seen[i], step));
    if (threadIdx.x % 32 < 8) most[warp][group + i] = seen[i];
  }
  __syncthreads();
  const int64_t own = int64_t(blockIdx.x) * kColumns + threadIdx.x;
  if (threadIdx.x >= kColumns || own >= e.rows) return;
  float all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all = fmaxf(all, most[w][threadIdx.x]);
  atomicMax(largest + own, __float_as_int(all));
}

// A block transposes tiles of kColumns rows by kTermsOfTile terms. A thread has eight rows by four terms: it
// reads eight neighbors of x at a time, and writes the codes of four terms of a row to shared memory as a
// word.
template <class T, bool e5m2, int kWidth>
__global__ void __launch_bounds__(kThreads)
    encode_columns(Encoding e, const T* from, const int* largest_of_row, int64_t tiles_each) {
  __shared__ uint32_t tile[kColumns][kTermsOfTile / 4 + 1];
  __shared__ float most[kWarps];
  const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32), group = lane % 8,
            quad = warp * 4 + lane / 8;
  const int64_t block_row = int64_t(blockIdx.x) * kColumns, row = block_row + group * kPack;
  float factor[kPack];
  if (!largest_of_row) {
    const float scale = scale_of<e5m2>(of_history(e));
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) e.scales[0] = scale;
#pragma unroll
    for (float& f : factor) f = 1 / scale;
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float scale = row + i < e.rows ? scale_of<e5m2>(__int_as_float(largest_of_row[row + i])) : 1;
      if (quad == 0 && blockIdx.y == 0 && row + i < e.rows) e.scales[row + i] = scale;
      factor[i] = 1 / scale;
    }
  }
  float largest = 0;
  const int64_t first = int64_t(blockIdx.y) * tiles_each * kTermsOfTile;
  const int64_t end = min(first + tiles_each * kTermsOfTile, e.stride);
  for (int64_t begin = first; begin < end; begin += kTermsOfTile) {
    uint32_t words[kPack] = {};
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      float a[kPack], b[kPack];
      load_terms<kWidth>(a, e, from, begin + quad * 4 + pair * 2, row);
      load_terms<kWidth>(b, e, from, begin + quad * 4 + pair * 2 + 1, row);
      largest = largest_of(b, largest_of(a, largest));
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        words[i] |= codes_of<e5m2>(a[i] * factor[i], b[i] * factor[i]) << (16 * pair);
    }
    // Rows with distance 32 would conflict in a bank, so the upper half of the groups writes its rows in an
    // order shifted by four.
    const bool later = group >= 4;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const int other = (i + 4) % kPack;
      tile[group * kPack + (later ? other : i)][quad] = later ? words[other] : words[i];
    }
    __syncthreads();
    const int64_t term = begin + lane * 4;
    for (int r = warp; r < kColumns && block_row + r < e.rows; r += kWarps) {
      uint8_t* const to = e.codes + (block_row + r) * e.stride + term;
      if (term >= end) continue;
      if constexpr (kWidth == kPack)
        *reinterpret_cast<uint32_t*>(to) = tile[r][lane];
      else
        for (int i = 0; i < 4; ++i) to[i] = uint8_t(tile[r][lane] >> (8 * i));
    }
    __syncthreads();
  }
  note(e, largest, most);
}

__global__ void __launch_bounds__(1024) push(float* history, const float* seen, int64_t steps) {
  float* row = history + blockIdx.x * steps;
  const float newest = seen[blockIdx.x * steps];
  if (newest < 0) return;  // uniform over the block
  const float before = threadIdx.x > 0 && threadIdx.x < steps ? row[threadIdx.x - 1] : newest;
  __syncthreads();
  if (threadIdx.x < steps) row[threadIdx.x] = before;
}

template <class T, bool e5m2, int kWidth>
void encode_as(const ToFp8& op, const Encoding& e, CudaQueue& queue) {
  const T* x = as<T>(op.x);
  const cudaStream_t stream = queue.use();
  if (!op.transposed && !e.history)
    return encode_rows<T, e5m2, kWidth><<<unsigned(e.rows), kThreads, 0, stream>>>(e, x);
  if (!op.transposed) {
    const int64_t blocks = std::min(kMostBlocks, ceil_div(e.rows * e.stride, kThreads * kWidth));
    return encode_all<T, e5m2, kWidth><<<unsigned(blocks), kThreads, 0, stream>>>(e, x);
  }
  const int64_t tiles = ceil_div(e.stride, kTermsOfTile), groups = ceil_div(e.rows, kColumns);
  const int64_t each = ceil_div(tiles, std::min(tiles, std::max<int64_t>(1, kMostBlocks / groups)));
  const dim3 grid(unsigned(groups), unsigned(ceil_div(tiles, each)));
  int* largest = nullptr;
  if (!e.history) {
    const int64_t bytes = e.rows * int64_t(sizeof(int));
    largest = static_cast<int*>(queue.scratch(bytes));
    cudaMemsetAsync(largest, 0, size_t(bytes), stream);
    largest_of_columns<T, kWidth><<<grid, kThreads, 0, stream>>>(e, x, largest, each * kTermsOfTile);
    queue.launched("ToFp8");
  }
  encode_columns<T, e5m2, kWidth><<<grid, kThreads, 0, stream>>>(e, x, largest, each);
}

template <class T, bool e5m2>
void encode(const ToFp8& op, const Encoding& e, CudaQueue& queue) {
  if (aligned({op.x, op.codes}) && (op.transposed ? e.rows : e.terms) % kPack == 0)
    encode_as<T, e5m2, kPack>(op, e, queue);
  else
    encode_as<T, e5m2, 1>(op, e, queue);
}

}  // namespace

void run(const ToFp8& op, Stream& stream) {
  if (op.codes.numel() == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  const Encoding e{.codes = as<uint8_t>(op.codes),
                   .scales = as<float>(op.scales),
                   .seen = as<float>(op.seen),
                   .history = as<float>(op.history),
                   .rows = op.codes.dim(0),
                   .terms = op.x.dim(op.transposed ? 0 : 1),
                   .stride = op.codes.dim(1),
                   .steps = int(op.history.numel()),
                   .unit = op.unit};
  with_type(op.x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (op.codes.dtype() == DType::fp8_e5m2)
      encode<T, true>(op, e, queue);
    else
      encode<T, false>(op, e, queue);
  });
  queue.launched("ToFp8");
}

void run(const Fp8Matmul& op, Stream& stream) {
  if (op.c.numel() == 0) return;
  const Matmul product{
      .c = op.c, .a = op.a, .b = op.b, .bias = op.bias, .transpose_b = true, .accumulate = op.accumulate};
  const bool there =
      multiply_with_bias({.op = product, .a_scales = op.a_scales, .b_scales = op.b_scales}, stream);
  require(there, Exit::usage,
          "cleave.fp8.scaling: cuBLASLt has no product of {} x {} x {} of {} and {} on cuda:{}; FP8 needs "
          "compute capability 8.9 or more, and row scales 9.0; set it to off",
          op.c.dim(0), op.c.dim(1), op.a.dim(1), name_of(op.a.dtype()), name_of(op.b.dtype()),
          cuda_queue(stream).device());
}

void run(const PushFp8History& op, Stream& stream) {
  if (op.history.numel() == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  push<<<unsigned(op.history.dim(0)), 1024, 0, queue.use()>>>(as<float>(op.history), as<float>(op.seen),
                                                              op.history.dim(1));
  queue.launched("PushFp8History");
}

}  // namespace cleave::kernels::gpu
