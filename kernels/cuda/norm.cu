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
  float eps, offset;  // the offset of RMSNorm alone
  bool packed;
};

// One block a row; the row waits in shared memory, as it was stored, so that backward sees the same numbers.
// One that is too wide for that (not kKept) is read again, with the same result.
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
  const T* stored = (a.residual ? a.sum : a.x) + at;  // each thread reads what it has read or written
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
