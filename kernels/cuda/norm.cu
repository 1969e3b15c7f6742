#include "kernels/norm.h"

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/device.cuh"

namespace cleave::gpu {
namespace {

constexpr int kWarps = 8;

// body(i, Count<N>) for this thread's packs of a row.
template <class Body>
__device__ __forceinline__ void walk(int width, bool packed, Body body) {
  for (int i = int(threadIdx.x) * kPack; i < width; i += int(blockDim.x) * kPack) {
    if (packed && i + kPack <= width)
      body(i, Count<kPack>{});
    else
      for (int j = i; j < i + kPack && j < width; ++j) body(j, Count<1>{});
  }
}

// LayerNorm is centered; RMSNorm is the same without mean and bias, which are null.
template <class T>
struct NormForward {
  T *y, *sum;
  const T *x, *residual, *weight, *bias;
  float *mean, *rstd;
  int width;
  float eps;
  bool packed;
};

// One block a row; the row waits in shared memory, as it was stored, so that backward sees the same numbers.
template <class T, bool kCentered>
__global__ void __launch_bounds__(32 * kWarps, 4) norm_forward(NormForward<T> a) {
  extern __shared__ __align__(16) float row[];
  __shared__ float shared[kWarps];
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
    store(row + i, v);
#pragma unroll
    for (int j = 0; j < n.value; ++j) total = kCentered ? total + v[j] : fmaf(v[j], v[j], total);
  });
  float mean = 0, variance = block_sum(total, shared) / float(a.width);
  if constexpr (kCentered) {
    mean = variance;
    float squares = 0;
    for (int i = int(threadIdx.x) * kPack; i < a.width; i += int(blockDim.x) * kPack)
#pragma unroll
      for (int j = i; j < i + kPack; ++j)
        if (j < a.width) squares = fmaf(row[j] - mean, row[j] - mean, squares);
    variance = block_sum(squares, shared) / float(a.width);
  }
  const float rstd = 1.0f / sqrtf(variance + a.eps);
  walk(a.width, a.packed, [&](int i, auto n) {
    float v[n.value], w[n.value], b[n.value] = {};
    load(v, row + i);
    load(w, a.weight + i);
    if constexpr (kCentered) load(b, a.bias + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) v[j] = fmaf((v[j] - mean) * rstd, w[j], b[j]);
    store(a.y + at + i, v);
  });
  if (threadIdx.x > 0) return;
  if constexpr (kCentered) a.mean[blockIdx.x] = mean;
  a.rstd[blockIdx.x] = rstd;
}

template <class T>
struct NormBackward {
  T* dx;
  const T *dy, *x, *weight, *dresidual;
  const float *mean, *rstd;
  float* partial;  // [blocks, 2, padded]: of dweight, of dbias; [blocks, padded] without a bias
  int64_t rows, block_rows;
  int width, padded;
  bool packed;
};

// Partial sums of a column.
template <bool kCentered>
inline constexpr int kSums = kCentered ? 2 : 1;

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy weight; without mean(g) where nothing was centered.
template <bool kCentered, class T>
__device__ __forceinline__ void norm_backward_row(const NormBackward<T>& a, int64_t row, float* sums,
                                                  float* shared) {
  const int64_t at = row * a.width;
  const float mean = kCentered ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  float sum_g = 0, sum_gx = 0;
  walk(a.width, a.packed, [&](int i, auto n) {
    float d[n.value], v[n.value], w[n.value], dw[n.value], db[n.value] = {};
    load(d, a.dy + at + i);
    load(v, a.x + at + i);
    load(w, a.weight + i);
    load(dw, sums + i);
    if constexpr (kCentered) load(db, sums + a.padded + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) {
      const float xhat = (v[j] - mean) * rstd, g = d[j] * w[j];
      sum_g += g;
      sum_gx = fmaf(g, xhat, sum_gx);
      dw[j] = fmaf(d[j], xhat, dw[j]);
      db[j] += d[j];
    }
    store(sums + i, dw);
    if constexpr (kCentered) store(sums + a.padded + i, db);
  });
  const float mean_g = kCentered ? block_sum(sum_g, shared) / float(a.width) : 0.0f;
  const float mean_gx = block_sum(sum_gx, shared) / float(a.width);
  walk(a.width, a.packed, [&](int i, auto n) {
    float d[n.value], v[n.value], w[n.value], r[n.value] = {};
    load(d, a.dy + at + i);
    load(v, a.x + at + i);
    load(w, a.weight + i);
    if (a.dresidual) load(r, a.dresidual + at + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) {
      const float xhat = (v[j] - mean) * rstd;
      v[j] = fmaf(-xhat, mean_gx, d[j] * w[j] - mean_g) * rstd + r[j];
    }
    store(a.dx + at + i, v);
  });
}

// Every thread keeps the sums of its own columns in shared memory, so they need no barrier.
template <class T, bool kCentered>
__global__ void __launch_bounds__(32 * kWarps) norm_backward(NormBackward<T> a) {
  extern __shared__ __align__(16) float sums[];
  __shared__ float shared[kWarps];
  auto each_own = [&](auto body) {
    for (int i = int(threadIdx.x) * kPack; i < a.width; i += int(blockDim.x) * kPack)
#pragma unroll
      for (int k = 0; k < kSums<kCentered>; ++k)
#pragma unroll
        for (int j = i; j < i + kPack; ++j) body(k * a.padded + j);
  };
  each_own([&](int j) { sums[j] = 0; });
  const int64_t begin = blockIdx.x * a.block_rows;
  const int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  for (int64_t row = begin; row < end; ++row) norm_backward_row<kCentered>(a, row, sums, shared);
  float* out = a.partial + int64_t(blockIdx.x) * kSums<kCentered> * a.padded;
  each_own([&](int j) { out[j] = sums[j]; });
}

template <bool kCentered, class Op>
void forward(CudaQueue& queue, const Op& op, const Tensor& bias, const Tensor& mean, const char* name) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1);
  if (rows == 0) return;
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    const bool packed = width % kPack == 0 && aligned({op.y, op.sum, op.x, op.residual, op.weight, bias});
    const NormForward<T> args{as<T>(op.y),
                              as<T>(op.residual.defined() ? op.sum : Tensor()),
                              as<T>(op.x),
                              as<T>(op.residual),
                              as<T>(op.weight),
                              as<T>(bias),
                              as<float>(mean),
                              as<float>(op.rstd),
                              int(width),
                              op.eps,
                              packed};
    const int64_t bytes = width * int64_t(sizeof(float));
    const auto kernel = norm_forward<T, kCentered>;
    allow_shared(queue, kernel, bytes, name);
    kernel<<<unsigned(rows), row_threads(width), size_t(bytes), queue.use()>>>(args);
  });
  queue.launched(name);
}

// Writes dx and returns the partial sums of the weight's gradient; those of the bias come half a stride
// later.
template <bool kCentered, class Op>
Partials backward(CudaQueue& queue, const Op& op, const Tensor& mean, const char* name) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1), padded = round_up(width, kPack);
  const int64_t block_rows = rows_of_a_block(rows), blocks = ceil_div(rows, block_rows);
  const int64_t stride = kSums<kCentered> * padded, bytes = stride * int64_t(sizeof(float));
  auto* partial = static_cast<float*>(queue.scratch(blocks * bytes));
  if (rows > 0)
    with_type(op.x.dtype(), [&](auto t) {
      using T = decltype(t);
      const bool packed = width % kPack == 0 && aligned({op.dx, op.dy, op.x, op.weight, op.dresidual});
      const NormBackward<T> args{as<T>(op.dx),
                                 as<T>(op.dy),
                                 as<T>(op.x),
                                 as<T>(op.weight),
                                 as<T>(op.dresidual),
                                 as<float>(mean),
                                 as<float>(op.rstd),
                                 partial,
                                 rows,
                                 block_rows,
                                 int(width),
                                 int(padded),
                                 packed};
      const auto kernel = norm_backward<T, kCentered>;
      allow_shared(queue, kernel, bytes, name);
      kernel<<<unsigned(blocks), row_threads(width), size_t(bytes), queue.use()>>>(args);
    });
  queue.launched(name);
  return {partial, stride, blocks};
}

}  // namespace

void run(const LayerNormForward& op, Stream& stream) {
  forward<true>(cuda_queue(stream), op, op.bias, op.mean, "LayerNormForward");
}

void run(const LayerNormBackward& op, Stream& stream) {
  const char* name = "LayerNormBackward";
  CudaQueue& queue = cuda_queue(stream);
  const Partials weight = backward<true>(queue, op, op.mean, name);
  const Partials bias{weight.data + weight.stride / 2, weight.stride, weight.count};
  sum_partials(queue, op.dweight, weight, op.accumulate_weight, name);
  sum_partials(queue, op.dbias, bias, op.accumulate_bias, name);
}

void run(const RmsNormForward& op, Stream& stream) {
  forward<false>(cuda_queue(stream), op, {}, {}, "RmsNormForward");
}

void run(const RmsNormBackward& op, Stream& stream) {
  const char* name = "RmsNormBackward";
  CudaQueue& queue = cuda_queue(stream);
  sum_partials(queue, op.dweight, backward<false>(queue, op, {}, name), op.accumulate, name);
}

}  // namespace cleave::gpu
