// Codes of 8-bit floats. A block takes rows of codes: where x lies along them, a warp has a row; where x is
// transposed, the block has 32 of its columns and turns tiles of codes around in shared memory.
#include <cuda_fp8.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/product.h"
#include "kernels/fp8.h"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 32;

// What an op is to its kernel.
struct Encoding {
  uint8_t* codes;
  float* scales;
  float* seen;           // may be null
  const float* history;  // null: every row has its own scale
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
  if (!(fabsf(x) <= 3.402823466e38f)) return kFp8NaN;
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

__device__ __forceinline__ float of_history(const Encoding& e) {
  float largest = 0;
  for (int i = int(threadIdx.x % 32); i < e.steps; i += 32) largest = fmaxf(largest, e.history[i] * e.unit);
  return warp_max(largest);
}

// The largest of each thread of a warp. Magnitudes are at least 0, and their bits are ordered as they are;
// what is below 0 as an integer was never seen.
__device__ __forceinline__ void note(const Encoding& e, float largest) {
  if (!e.seen) return;
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int*>(e.seen), __float_as_int(largest / e.unit));
}

template <class T, bool e5m2>
__global__ void __launch_bounds__(kThreads) encode_rows(Encoding e, const T* x) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= e.rows) return;
  const int lane = int(threadIdx.x % 32);
  const T* from = x + row * e.terms;
  float largest = 0;
  if (!e.history) {
    for (int64_t t = lane; t < e.terms; t += 32) largest = fmaxf(largest, fabsf(to_float(from[t])));
    largest = warp_max(largest);
  }
  const float scale = scale_of<e5m2>(e.history ? of_history(e) : largest), factor = 1 / scale;
  if (lane == 0 && (!e.history || row == 0)) e.scales[e.history ? 0 : row] = scale;
  uint8_t* to = e.codes + row * e.stride;
  for (int64_t t = lane; t < e.stride; t += 32) {
    const float value = t < e.terms ? to_float(from[t]) : 0;
    largest = fmaxf(largest, fabsf(value));
    to[t] = code_of<e5m2>(value * factor);
  }
  note(e, largest);
}

// Threads are 32 columns of x by kWarps rows of it, and after a tile of codes has been turned, a warp writes
// 32 terms of a row of codes. With a history the grid's y is parts of the terms.
template <class T, bool e5m2>
__global__ void __launch_bounds__(kThreads) encode_columns(Encoding e, const T* x, int64_t terms_each) {
  __shared__ float most[kWarps][kColumns];
  __shared__ uint16_t tile[kColumns][kColumns + 2];  // rows of 17 banks
  const int column = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  const int64_t row = int64_t(blockIdx.x) * kColumns + column, first = int64_t(blockIdx.y) * terms_each;
  const int64_t end = min(first + terms_each, e.stride), last = min(end, e.terms);
  float largest = 0;
  if (!e.history) {
    if (row < e.rows)
      for (int64_t t = first + warp; t < last; t += kWarps)
        largest = fmaxf(largest, fabsf(to_float(x[t * e.rows + row])));
    most[warp][column] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, most[w][column]);
  }
  const float scale = scale_of<e5m2>(e.history ? of_history(e) : largest), factor = 1 / scale;
  if (warp == 0 && !e.history && row < e.rows) e.scales[row] = scale;
  if (threadIdx.x == 0 && e.history && blockIdx.x == 0 && blockIdx.y == 0) e.scales[0] = scale;
  for (int64_t begin = first; begin < end; begin += kColumns) {
    for (int t = warp; t < kColumns; t += kWarps) {
      const int64_t term = begin + t;
      const float value = row < e.rows && term < last ? to_float(x[term * e.rows + row]) : 0;
      largest = fmaxf(largest, fabsf(value));
      tile[column][t] = code_of<e5m2>(value * factor);
    }
    __syncthreads();
    for (int r = warp; r < kColumns; r += kWarps) {
      const int64_t to = int64_t(blockIdx.x) * kColumns + r, term = begin + column;
      if (to < e.rows && term < end) e.codes[to * e.stride + term] = uint8_t(tile[r][column]);
    }
    __syncthreads();
  }
  note(e, largest);
}

__global__ void __launch_bounds__(1024) push(float* history, const float* seen, int64_t steps) {
  float* row = history + blockIdx.x * steps;
  const float newest = seen[blockIdx.x * steps];
  if (newest < 0) return;  // the same for the block
  const float before = threadIdx.x > 0 && threadIdx.x < steps ? row[threadIdx.x - 1] : newest;
  __syncthreads();
  if (threadIdx.x < steps) row[threadIdx.x] = before;
}

template <class T, bool e5m2>
void encode(const ToFp8& op, const Encoding& e, cudaStream_t stream) {
  const T* x = as<T>(op.x);
  if (!op.transposed)
    return encode_rows<T, e5m2><<<unsigned(ceil_div(e.rows, kWarps)), kThreads, 0, stream>>>(e, x);
  constexpr int64_t kTermsEach = 512;
  const int64_t each = e.history ? kTermsEach : e.stride;
  const dim3 grid(unsigned(ceil_div(e.rows, kColumns)), unsigned(ceil_div(e.stride, each)));
  encode_columns<T, e5m2><<<grid, kThreads, 0, stream>>>(e, x, each);
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
      encode<T, true>(op, e, queue.use());
    else
      encode<T, false>(op, e, queue.use());
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
          "cuBLASLt has no product of {} x {} x {} of {} and {} on cuda:{}; FP8 needs compute capability 8.9 "
          "or more, and scales of rows 9.0; set cleave.fp8.scaling to off",
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
