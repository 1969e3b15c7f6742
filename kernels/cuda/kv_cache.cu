// Attention of single rows over cached keys and values. A block is one query head of one row; a warp takes
// every eighth run of four of its keys. The lanes of a warp read a key together, each lane every 32nd element
// of the head.
#include "kernels/kv_cache.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kWarps = 8, kAtOnce = 4;
// Parts of 32 columns of a head: most heads have up to four.
constexpr int kNarrow = 4, kWide = int(kGpuHeadDim) / 32;
constexpr float kLog2OfE = 1.4426950408889634f;

template <class T>
struct Keep {
  T *keys, *values;
  const T* qkv;
  const int32_t *texts, *positions;
  int64_t head_dim, row_width, first_key, cached_positions;
  Divisor kv_heads;

  // A row is the part of a qkv row that belongs to one key/value head.
  template <int N>
  __device__ void operator()(uint32_t item, int column, Count<N>) const {
    const uint32_t row = kv_heads.quotient(item), head = item - row * kv_heads.value();
    const int64_t text = texts[row];
    if (text < 0) return;
    const int64_t to =
        ((text * kv_heads.value() + head) * cached_positions + positions[row]) * head_dim + column;
    const T* from = qkv + row * row_width + first_key + head * head_dim + column;
    float x[N];
    load(x, from);
    store(keys + to, x);
    load(x, from + kv_heads.value() * head_dim);
    store(values + to, x);
  }
};

template <class T>
struct Attend {
  T* y;
  const T *qkv, *keys, *values;
  const int32_t *texts, *positions;
  int heads, kv_heads, dim, cached_positions, window;
  float log2_scale, log2_cap;  // cap 0: none
};

template <class T, int kParts>
__global__ void __launch_bounds__(32 * kWarps) attend(Attend<T> a) {
  __shared__ float outs[kWarps][kParts * 32], tops[kWarps], sums[kWarps];
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int text = a.texts[row];
  T* y = a.y + (row * a.heads + head) * a.dim;
  if (text < 0) {
    for (int i = threadIdx.x; i < a.dim; i += 32 * kWarps) y[i] = rounded<T>(0.0f);
    return;
  }
  const int end = a.positions[row] + 1, begin = a.window > 0 && end > a.window ? end - a.window : 0;
  const T* from = a.qkv + row * (a.heads + 2 * a.kv_heads) * a.dim + int64_t(head) * a.dim;
  const int64_t kept =
      (int64_t(text) * a.kv_heads + head / (a.heads / a.kv_heads)) * a.cached_positions * int64_t(a.dim);
  const T *keys = a.keys + kept, *values = a.values + kept;
  float q[kParts], out[kParts] = {}, top = -INFINITY, sum = 0;
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    q[p] = p * 32 + lane < a.dim ? to_float(from[p * 32 + lane]) * a.log2_scale : 0.0f;
  for (int first = begin + warp * kAtOnce; first < end; first += kWarps * kAtOnce) {
    float score[kAtOnce], highest = top;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      float dot = 0;
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        if (first + k < end && p * 32 + lane < a.dim)
          dot = fmaf(q[p], to_float(keys[int64_t(first + k) * a.dim + p * 32 + lane]), dot);
      score[k] = warp_sum(dot);
      if (a.log2_cap > 0) score[k] = a.log2_cap * tanhf(score[k] / a.log2_cap);
      if (first + k >= end) score[k] = -INFINITY;
      highest = fmaxf(highest, score[k]);
    }
    const float shrink = exp2f(top - highest);
    top = highest;
    sum *= shrink;
#pragma unroll
    for (int p = 0; p < kParts; ++p) out[p] *= shrink;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k >= end) break;
      const float weight = exp2f(score[k] - highest);
      sum += weight;
#pragma unroll
      for (int p = 0; p < kParts; ++p)
        if (p * 32 + lane < a.dim)
          out[p] = fmaf(weight, to_float(values[int64_t(first + k) * a.dim + p * 32 + lane]), out[p]);
    }
  }
  if (lane == 0) tops[warp] = top, sums[warp] = sum;
#pragma unroll
  for (int p = 0; p < kParts; ++p) outs[warp][p * 32 + lane] = out[p];
  __syncthreads();
  // A warp without keys has a top of minus infinity and weight zero; the first warp always has a key.
  float highest = tops[0], all = 0;
  for (int w = 1; w < kWarps; ++w) highest = fmaxf(highest, tops[w]);
  for (int w = 0; w < kWarps; ++w) all = fmaf(sums[w], exp2f(tops[w] - highest), all);
  for (int i = threadIdx.x; i < a.dim; i += 32 * kWarps) {
    float x = 0;
    for (int w = 0; w < kWarps; ++w) x = fmaf(outs[w][i], exp2f(tops[w] - highest), x);
    y[i] = rounded<T>(x / all);
  }
}

}  // namespace

void run(const WriteKvCache& op, Stream& stream) {
  const int64_t kv_heads = op.keys.dim(1), dim = op.keys.dim(3);
  with_type(op.qkv.dtype(), [&](auto t) {
    using T = decltype(t);
    const bool packed = dim % kPackOf<T> == 0 && aligned({op.keys, op.values, op.qkv});
    for_each_of_rows<kPackOf<T>>(cuda_queue(stream), op.qkv.dim(0) * kv_heads, dim, packed, "WriteKvCache",
                                 Keep<T>{as<T>(op.keys), as<T>(op.values), as<T>(op.qkv),
                                         as<int32_t>(op.rows.texts), as<int32_t>(op.rows.positions), dim,
                                         op.qkv.dim(1), op.heads * dim, op.keys.dim(2), Divisor(kv_heads)});
  });
}

void run(const KvCacheAttention& op, Stream& stream) {
  const int64_t dim = op.keys.dim(3), rows = op.qkv.dim(0);
  CHECK(dim <= kGpuHeadDim,
        "KvCacheAttention: head_dim {} is above {}, the most the CUDA backend has kernels for", dim,
        kGpuHeadDim);
  if (rows == 0) return;
  const float scale = op.scale != 0 ? op.scale : 1.0f / std::sqrt(float(dim));
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.qkv.dtype(), [&](auto t) {
    using T = decltype(t);
    const auto kernel = dim > 32 * kNarrow ? attend<T, kWide> : attend<T, kNarrow>;
    kernel<<<dim3(unsigned(rows), unsigned(op.heads)), 32 * kWarps, 0, queue.use()>>>(
        {as<T>(op.y), as<T>(op.qkv), as<T>(op.keys), as<T>(op.values), as<int32_t>(op.rows.texts),
         as<int32_t>(op.rows.positions), int(op.heads), int(op.keys.dim(1)), int(dim), int(op.keys.dim(2)),
         int(op.window), scale * kLog2OfE, op.cap * kLog2OfE});
  });
  queue.launched("KvCacheAttention");
}

}  // namespace cleave::kernels::gpu
