#include "kernels/norm.h"

#include "kernels/cuda/norm.cuh"

namespace cleave::kernels::gpu {
namespace {

// LayerNorm is centered; RMSNorm is the same without mean and bias, which are null.
template <class T>
struct NormForward {
  T *y, *sum;
  const T *x, *residual, *weight, *bias;
  float *mean, *rstd;
  int width;
  float eps, offset;  // offset: RMSNorm only
  bool packed;
};

// One block per row. The row is kept in shared memory as it was stored, so backward uses the same numbers. A
// row that is too wide for this (not kKept) is read again, with the same result.
template <class T, bool kCentered, bool kKept>
__global__ void __launch_bounds__(32 * kNormWarps, 4) norm_forward(NormForward<T> a) {
  extern __shared__ __align__(16) float row[];
  __shared__ float shared[kNormWarps];
  const int64_t at = int64_t(blockIdx.x) * a.width;
  float total = 0;
  walk(a.width, a.packed, [&](int i, auto n) {
    float v[n.value];
    load(v, a.x + at + i);
    if (a.residual) {
      float r[n.value];
      load(r, a.residual + at + i);
#pragma unroll
      for (int j = 0; j < n.value; ++j) v[j] = to_float(rounded<T>(v[j] + r[j]));
      store(a.sum + at + i, v);
    }
    if constexpr (kKept) store(row + i, v);
#pragma unroll
    for (int j = 0; j < n.value; ++j) total = kCentered ? total + v[j] : fmaf(v[j], v[j], total);
  });
  const T* stored = (a.residual ? a.sum : a.x) + at;  // each thread reads its own elements
  float mean = 0, variance = block_sum(total, shared) / float(a.width);
  if constexpr (kCentered) {
    mean = variance;
    float squares = 0;
    const auto add = [&](float x) { squares = fmaf(x - mean, x - mean, squares); };
    for (int i = int(threadIdx.x) * kPack; i < a.width; i += int(blockDim.x) * kPack)
#pragma unroll
      for (int j = i; j < i + kPack; ++j)
        if (j < a.width) add(kKept ? row[j] : to_float(stored[j]));
    variance = block_sum(squares, shared) / float(a.width);
  }
  const float rstd = 1.0f / sqrtf(variance + a.eps);
  walk(a.width, a.packed, [&](int i, auto n) {
    float v[n.value], w[n.value], b[n.value] = {};
    if constexpr (kKept)
      load(v, row + i);
    else
      load(v, stored + i);
    load(w, a.weight + i);
    if constexpr (kCentered) load(b, a.bias + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j)
      v[j] = fmaf((v[j] - mean) * rstd, kCentered ? w[j] : w[j] + a.offset, b[j]);
    store(a.y + at + i, v);
  });
  if (threadIdx.x > 0) return;
  if constexpr (kCentered) a.mean[blockIdx.x] = mean;
  a.rstd[blockIdx.x] = rstd;
}

constexpr int kRowsOfBlock = 8, kMostPacks = 4;

// Narrow rows: one warp per row, in registers, without barriers and without waits for other rows.
template <class T, bool kCentered, int kPacks>
__global__ void __launch_bounds__(32 * kRowsOfBlock) narrow_forward(NormForward<T> a, int64_t rows) {
  constexpr int kWide = kPackOf<T>;
  const int64_t row = int64_t(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = int(threadIdx.x) % 32;
  const int64_t at = row * a.width;
  const auto column = [&](int p) { return (p * 32 + lane) * kWide; };
  float v[kPacks][kWide] = {}, r[kPacks][kWide] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (column(p) < a.width) load(v[p], a.x + at + column(p));
  if (a.residual) {
    // Loads everything before the first store: a load cannot be moved before a store that may alias it.
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (column(p) < a.width) load(r[p], a.residual + at + column(p));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (column(p) >= a.width) continue;
#pragma unroll
      for (int j = 0; j < kWide; ++j) v[p][j] = to_float(rounded<T>(v[p][j] + r[p][j]));
      store(a.sum + at + column(p), v[p]);
    }
  }
  float total = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
#pragma unroll
    for (int j = 0; j < kWide; ++j) total = kCentered ? total + v[p][j] : fmaf(v[p][j], v[p][j], total);
  float mean = 0, variance = warp_sum(total) / float(a.width);
  if constexpr (kCentered) {
    mean = variance;
    float squares = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (column(p) < a.width)
#pragma unroll
        for (int j = 0; j < kWide; ++j) squares = fmaf(v[p][j] - mean, v[p][j] - mean, squares);
    variance = warp_sum(squares) / float(a.width);
  }
  const float rstd = 1.0f / sqrtf(variance + a.eps);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (column(p) >= a.width) continue;
    float w[kWide], b[kWide] = {};
    load(w, a.weight + column(p));
    if constexpr (kCentered) load(b, a.bias + column(p));
#pragma unroll
    for (int j = 0; j < kWide; ++j)
      v[p][j] = fmaf((v[p][j] - mean) * rstd, kCentered ? w[j] : w[j] + a.offset, b[j]);
    store(a.y + at + column(p), v[p]);
  }
  if (lane > 0) return;
  if constexpr (kCentered) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <class T, bool kCentered>
auto narrow_of(int64_t packs) {
  return packs == 1   ? narrow_forward<T, kCentered, 1>
         : packs == 2 ? narrow_forward<T, kCentered, 2>
         : packs == 3 ? narrow_forward<T, kCentered, 3>
                      : narrow_forward<T, kCentered, kMostPacks>;
}

float offset_of(const LayerNormForward&) { return 0; }
float offset_of(const RmsNormForward& op) { return op.offset; }

template <bool kCentered, class Op>
void forward(CudaQueue& queue, const Op& op, const Tensor& bias, const Tensor& mean, const char* name) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1);
  if (rows == 0) return;
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    const bool packed = width % kPack == 0 && aligned({op.y, op.sum, op.x, op.residual, op.weight, bias});
    const NormForward<T> args{as<T>(op.y),      as<T>(op.residual.defined() ? op.sum : Tensor()),
                              as<T>(op.x),      as<T>(op.residual),
                              as<T>(op.weight), as<T>(bias),
                              as<float>(mean),  as<float>(op.rstd),
                              int(width),       op.eps,
                              offset_of(op),    packed};
    if (const int64_t packs = ceil_div(width, 32 * kPackOf<T>);
        packed && width % kPackOf<T> == 0 && packs <= kMostPacks) {
      narrow_of<T, kCentered>(
          packs)<<<unsigned(ceil_div(rows, kRowsOfBlock)), 32 * kRowsOfBlock, 0, queue.use()>>>(args, rows);
      return;
    }
    const int64_t bytes = width * int64_t(sizeof(float));
    const bool kept = fits_in_shared(queue, bytes);
    const auto kernel = kept ? norm_forward<T, kCentered, true> : norm_forward<T, kCentered, false>;
    if (kept) allow_shared(queue, kernel, bytes, name);
    kernel<<<unsigned(rows), row_threads(width), size_t(kept ? bytes : 0), queue.use()>>>(args);
  });
  queue.launched(name);
}

}  // namespace

void run(const LayerNormForward& op, Stream& stream) {
  forward<true>(cuda_queue(stream), op, op.bias, op.mean, "LayerNormForward");
}

void run(const RmsNormForward& op, Stream& stream) {
  forward<false>(cuda_queue(stream), op, {}, {}, "RmsNormForward");
}

}  // namespace cleave::kernels::gpu
