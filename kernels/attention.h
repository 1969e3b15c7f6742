// Causal multi-head attention that never stores a T x T matrix (online softmax as in FlashAttention, arXiv
// 2205.14135).
#pragma once
#include "kernels/launch.h"

namespace cleave {

// The widest head of the GPU's bodies; the CPU's have no limit.
inline constexpr int64_t kGpuHeadDim = 128;

// qkv: [batch * seq, (heads + 2 * kv_heads) * head_dim], a row holding all queries, then all keys, then all
// values; y: [batch * seq, heads * head_dim]; lse: [batch, heads, seq] fp32, the log of the softmax
// denominator for backward. Query head h reads key/value head h / (heads / kv_heads). scale is applied to q
// k^T; 1 / sqrt(head_dim) when 0.
struct AttentionForward {
  Tensor y, lse;
  Tensor qkv;
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
  float scale = 0;
  void check() const;
  double flops() const { return 2.0 * double(batch * heads) * double(seq) * double(seq) * double(head_dim); }
};
CLEAVE_KERNEL(AttentionForward)

// dqkv (every element overwritten) from dy, the forward's output y, lse and input qkv. Sums run in an order
// that does not depend on the number of threads. dqkv must not alias qkv.
struct AttentionBackward {
  Tensor dqkv;
  Tensor dy, y, lse, qkv;
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
  float scale = 0;
  void check() const;
  double flops() const { return 5.0 * double(batch * heads) * double(seq) * double(seq) * double(head_dim); }
};
CLEAVE_KERNEL(AttentionBackward)

}  // namespace cleave
