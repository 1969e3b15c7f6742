#include "kernels/cuda/attention.cuh"

#include <cmath>

#include "kernels/cuda/attention_routes.h"

namespace cleave::kernels::gpu {
namespace {

// delta[b, head, row] = sum of dy y over the head's columns; one warp per row.
template <class T>
__global__ void __launch_bounds__(128) row_dots(float* delta, Attention<T> a) {
  const int64_t index = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
  if (index >= int64_t(a.batch) * a.seq * a.heads) return;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < a.dim; d += 32)
    sum = fmaf(to_float(a.dy[index * a.dim + d]), to_float(a.y[index * a.dim + d]), sum);
  sum = warp_sum(sum);
  const int head = int(index % a.heads);
  const int64_t row = index / a.heads;
  if (threadIdx.x % 32 == 0) delta[a.row(int(row / a.seq), head) + row % a.seq] = sum;
}

template <class T>
Attention<T> attention_of(const AttentionForward& op) {
  Attention<T> a;
  a.qkv = as<T>(op.qkv);
  a.batch = int(op.batch), a.seq = int(op.seq), a.heads = int(op.heads), a.kv_heads = int(op.kv_heads);
  a.dim = int(op.head_dim);
  a.joined_row = (op.heads + 2 * op.kv_heads) * op.head_dim, a.out_row = op.heads * op.head_dim;
  require(op.head_dim <= kGpuHeadDim, Exit::usage,
          "attention: heads of {} elements are not supported (the GPU kernels support up to {}); use "
          "--device cpu",
          op.head_dim, kGpuHeadDim);
  a.scale = op.scale != 0 ? op.scale : 1.0f / std::sqrt(float(op.head_dim));
  a.log2_scale = a.scale * kLog2E;
  a.causal = op.mask.causal, a.window = int(op.mask.window_in(op.seq));
  if (op.mask.documents.defined()) a.documents = op.mask.documents.as<int32_t>();
  a.dropout = op.dropout, a.log2_cap = op.cap * kLog2E;
  return a;
}

template <class T>
constexpr bool on_tensor_cores(const Attention<T>& a, bool packed) {
  return !std::is_same_v<T, float> && packed && a.dim % 8 == 0 && a.dim <= kTensorCoreHeadDim;
}

// Features of the plain kernels only.
bool is_plain(const AttentionForward& op) {
  return op.dropout.p > 0 || !op.mask.causal || op.cap > 0 || op.head_dim > kTensorCoreHeadDim;
}

enum class Cores { warps, warpgroups };

void start(const AttentionForward& op, Stream& stream, Cores cores) {
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.qkv.dtype(), [&](auto t) {
    using T = decltype(t);
    Attention<T> a = attention_of<T>(op);
    a.out = as<T>(op.y), a.lse_out = as<float>(op.lse);
    if constexpr (!std::is_same_v<T, float>) {
      if (cores == Cores::warpgroups) return warpgroup_attention_forward(queue, a);
      if (!is_plain(op) && on_tensor_cores(a, aligned({op.qkv, op.y}))) return attention_forward(queue, a);
    }
    plain_attention_forward(queue, a);
  });
}

void start(const AttentionBackward& op, Stream& stream, Cores cores) {
  const AttentionForward& f = op.forward;
  const int64_t rows = f.batch * f.seq * f.heads;
  CudaQueue& queue = cuda_queue(stream);
  auto* delta = static_cast<float*>(queue.scratch(rows * int64_t(sizeof(float))));
  with_type(f.qkv.dtype(), [&](auto t) {
    using T = decltype(t);
    Attention<T> a = attention_of<T>(f);
    a.y = as<T>(f.y), a.dy = as<T>(op.dy), a.lse = as<float>(f.lse), a.dqkv = as<T>(op.dqkv);
    row_dots<<<unsigned(ceil_div(rows, 4)), 128, 0, queue.use()>>>(delta, a);
    queue.launched("AttentionBackward");
    a.delta = delta;
    if constexpr (!std::is_same_v<T, float>) {
      if (cores == Cores::warpgroups) return warpgroup_attention_backward(queue, a);
      if (!is_plain(f) && on_tensor_cores(a, aligned({f.qkv, op.dqkv, op.dy})))
        return attention_backward(queue, a);
    }
    plain_attention_backward(queue, a);
  });
}

// Runs the fastest implementation that supports the op.
template <class Op>
void run_fastest(const Op& op, Stream& stream) {
  const AttentionForward& f = forward_of(op);
  if (f.batch * f.seq == 0) return;
  if (!is_plain(f) && (library_attention(op, stream) || warpgroup_attention(op, stream))) return;
  run_own(op, stream);
}

}  // namespace

void run(const AttentionForward& op, Stream& stream) { run_fastest(op, stream); }
void run(const AttentionBackward& op, Stream& stream) { run_fastest(op, stream); }

void run_own(const AttentionForward& op, Stream& stream) { start(op, stream, Cores::warps); }
void run_own(const AttentionBackward& op, Stream& stream) { start(op, stream, Cores::warps); }

void run_on_warpgroups(const AttentionForward& op, Stream& stream) { start(op, stream, Cores::warpgroups); }
void run_on_warpgroups(const AttentionBackward& op, Stream& stream) { start(op, stream, Cores::warpgroups); }

}  // namespace cleave::kernels::gpu
