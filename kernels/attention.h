// Multi-head attention that never stores a T x T matrix (online softmax as in FlashAttention, arXiv
// 2205.14135).
#pragma once
#include <algorithm>

#include "kernels/launch.h"

namespace cleave {

// The widest head of the GPU's bodies; the CPU's have no limit.
inline constexpr int64_t kGpuHeadDim = 128;

// Which keys a query sees: of its sequence all up to its own position, or fewer of these. What a query sees
// is an unbroken run of keys that ends with its own and begins no earlier than that of the query before, so
// the kernels pass over whole blocks of hidden keys.
struct AttentionMask {
  // The last `window` positions, the query's own among them; 0: all of them.
  int64_t window = 0;
  // int32 [batch, seq], or undefined. A query sees keys of its own document only: for each position the place
  // in its sequence where its document begins, which is 0 at the first position, never falls from one
  // position to the next, and is never behind the position itself.
  Tensor documents = {};

  // The window where it hides anything of `seq` positions, else 0.
  int64_t window_in(int64_t seq) const { return window < seq ? window : 0; }
  // Pairs of a query and a key that it sees in one sequence. Documents lie in memory that need not be written
  // yet; they count as one.
  double pairs(int64_t seq) const {
    const double all = double(seq), seen = double(window > 0 ? std::min(window, seq) : seq);
    return seen * (seen + 1) / 2 + (all - seen) * seen;
  }
};

// qkv: [batch * seq, (heads + 2 * kv_heads) * head_dim], a row holding all queries, then all keys, then all
// values; y: [batch * seq, heads * head_dim]; lse: [batch, heads, seq] fp32, the log of the softmax
// denominator for backward. Query head h reads key/value head h / (heads / kv_heads). scale is applied to q
// k^T; 1 / sqrt(head_dim) when 0.
struct AttentionForward {
  Tensor y, lse;
  Tensor qkv;
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
  float scale = 0;
  AttentionMask mask = {};
  void check() const;
  // Two products of a multiplication and an addition.
  double flops() const { return 4.0 * double(batch * heads) * mask.pairs(seq) * double(head_dim); }
};
CLEAVE_KERNEL(AttentionForward)

// dqkv (every element overwritten) from dy, the forward's output y, lse and input qkv, with its scale and
// mask. Sums run in an order that does not depend on the number of threads. dqkv must not alias qkv.
struct AttentionBackward {
  Tensor dqkv;
  Tensor dy, y, lse, qkv;
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
  float scale = 0;
  AttentionMask mask = {};
  void check() const;
  // Five products.
  double flops() const { return 10.0 * double(batch * heads) * mask.pairs(seq) * double(head_dim); }
};
CLEAVE_KERNEL(AttentionBackward)

}  // namespace cleave
