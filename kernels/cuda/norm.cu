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
template <class T>
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
    for (int j = 0; j < n.value; ++j) total += v[j];
  });
  const float mean = block_sum(total, shared) / float(a.width);
  float squares = 0;
  for (int i = int(threadIdx.x) * kPack; i < a.width; i += int(blockDim.x) * kPack)
#pragma unroll
    for (int j = i; j < i + kPack; ++j)
      if (j < a.width) squares = fmaf(row[j] - mean, row[j] - mean, squares);
  const float rstd = 1.0f / sqrtf(block_sum(squares, shared) / float(a.width) + a.eps);
  walk(a.width, a.packed, [&](int i, auto n) {
    float v[n.value], w[n.value], b[n.value];
    load(v, row + i);
    load(w, a.weight + i);
    load(b, a.bias + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) v[j] = fmaf((v[j] - mean) * rstd, w[j], b[j]);
    store(a.y + at + i, v);
  });
  if (threadIdx.x > 0) return;
  a.mean[blockIdx.x] = mean;
  a.rstd[blockIdx.x] = rstd;
}

template <class T>
struct NormBackward {
  T* dx;
  const T *dy, *x, *weight, *dresidual;
  const float *mean, *rstd;
  float* partial;  // [blocks, 2, padded]: of dweight, of dbias
  int64_t rows, block_rows;
  int width, padded;
  bool packed;
};

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy weight.
template <class T>
__device__ __forceinline__ void norm_backward_row(const NormBackward<T>& a, int64_t row, float* sums,
                                                  float* shared) {
  const int64_t at = row * a.width;
  const float mean = a.mean[row], rstd = a.rstd[row];
  float sum_g = 0, sum_gx = 0;
  walk(a.width, a.packed, [&](int i, auto n) {
    float d[n.value], v[n.value], w[n.value], dw[n.value], db[n.value];
    load(d, a.dy + at + i);
    load(v, a.x + at + i);
    load(w, a.weight + i);
    load(dw, sums + i);
    load(db, sums + a.padded + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) {
      const float xhat = (v[j] - mean) * rstd, g = d[j] * w[j];
      sum_g += g;
      sum_gx = fmaf(g, xhat, sum_gx);
      dw[j] = fmaf(d[j], xhat, dw[j]);
      db[j] += d[j];
    }
    store(sums + i, dw);
    store(sums + a.padded + i, db);
  });
  const float mean_g = block_sum(sum_g, shared) / float(a.width);
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
template <class T>
__global__ void __launch_bounds__(32 * kWarps) norm_backward(NormBackward<T> a) {
  extern __shared__ __align__(16) float sums[];
  __shared__ float shared[kWarps];
  auto each_own = [&](auto body) {
    for (int i = int(threadIdx.x) * kPack; i < a.width; i += int(blockDim.x) * kPack)
#pragma unroll
      for (int j = i; j < i + kPack; ++j) body(j);
  };
  each_own([&](int j) { sums[j] = sums[a.padded + j] = 0; });
  const int64_t begin = blockIdx.x * a.block_rows;
  const int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  for (int64_t row = begin; row < end; ++row) norm_backward_row(a, row, sums, shared);
  float* out = a.partial + int64_t(blockIdx.x) * 2 * a.padded;
  each_own([&](int j) {
    out[j] = sums[j];
    out[a.padded + j] = sums[a.padded + j];
  });
}

}  // namespace

void run(const LayerNormForward& op, Stream& stream) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1);
  if (rows == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.x.dtype(), [&](auto t) {
    using T = decltype(t);
    const bool packed = width % kPack == 0 && aligned({op.y, op.sum, op.x, op.residual, op.weight, op.bias});
    const NormForward<T> args{as<T>(op.y),
                              as<T>(op.residual.defined() ? op.sum : Tensor()),
                              as<T>(op.x),
                              as<T>(op.residual),
                              as<T>(op.weight),
                              as<T>(op.bias),
                              as<float>(op.mean),
                              as<float>(op.rstd),
                              int(width),
                              op.eps,
                              packed};
    const int64_t bytes = width * int64_t(sizeof(float));
    allow_shared(queue, norm_forward<T>, bytes, "LayerNormForward");
    norm_forward<T><<<unsigned(rows), row_threads(width), size_t(bytes), queue.use()>>>(args);
  });
  queue.launched("LayerNormForward");
}

void run(const LayerNormBackward& op, Stream& stream) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1), padded = round_up(width, kPack);
  const int64_t block_rows = rows_of_a_block(rows), blocks = ceil_div(rows, block_rows);
  CudaQueue& queue = cuda_queue(stream);
  auto* partial = static_cast<float*>(queue.scratch(blocks * 2 * padded * int64_t(sizeof(float))));
  if (rows > 0)
    with_type(op.x.dtype(), [&](auto t) {
      using T = decltype(t);
      const bool packed = width % kPack == 0 && aligned({op.dx, op.dy, op.x, op.weight, op.dresidual});
      const NormBackward<T> args{as<T>(op.dx),
                                 as<T>(op.dy),
                                 as<T>(op.x),
                                 as<T>(op.weight),
                                 as<T>(op.dresidual),
                                 as<float>(op.mean),
                                 as<float>(op.rstd),
                                 partial,
                                 rows,
                                 block_rows,
                                 int(width),
                                 int(padded),
                                 packed};
      const int64_t bytes = 2 * padded * int64_t(sizeof(float));
      allow_shared(queue, norm_backward<T>, bytes, "LayerNormBackward");
      norm_backward<T><<<unsigned(blocks), row_threads(width), size_t(bytes), queue.use()>>>(args);
    });
  queue.launched("LayerNormBackward");
  sum_partials(queue, op.dweight, {partial, 2 * padded, blocks}, op.accumulate_weight, "LayerNormBackward");
  sum_partials(queue, op.dbias, {partial + padded, 2 * padded, blocks}, op.accumulate_bias,
               "LayerNormBackward");
}

}  // namespace cleave::gpu
