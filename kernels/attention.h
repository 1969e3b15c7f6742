// Multi-head attention without a T x T matrix (online softmax as in FlashAttention, arXiv 2205.14135).
#pragma once
#include <algorithm>

#include "core/philox.h"
#include "kernels/launch.h"

namespace cleave::kernels {

// Maximum head dim of the GPU kernels; CPU kernels have no limit.
inline constexpr int64_t kGpuHeadDim = 256;

// Visible keys of a query: all keys of its sequence up to its own position, or fewer. They are consecutive,
// end with the query's own key, and start no earlier than those of the previous query, so kernels skip whole
// blocks of hidden keys.
struct AttentionMask {
  // False: a query sees all keys of its sequence, as in an encoder; requires no window and no documents.
  bool causal = true;
  // A query sees the last `window` positions, including its own; 0: all.
  int64_t window = 0;
  // int32 [batch, seq], or undefined. A query sees keys of the same document only. The value at a position is
  // the start of its document within the sequence: 0 at the first position, non-decreasing, and at most the
  // position itself.
  Tensor documents = {};

  // The window if it hides any of `seq` positions, else 0.
  int64_t window_in(int64_t seq) const { return window < seq ? window : 0; }
  // Pairs of a query and a visible key in one sequence. Counts all documents as one, because their memory may
  // not be written yet.
  double pairs(int64_t seq) const {
    if (!causal) return double(seq) * double(seq);
    const double all = double(seq), seen = double(window > 0 ? std::min(window, seq) : seq);
    return seen * (seen + 1) / 2 + (all - seen) * seen;
  }
};

// Dropout of softmax results: a weight becomes 0 if philox.uniform(i) < p, else it is divided by 1 - p, with
// i = ((sample * all_heads + head) * seq + query) * seq + key. Sample and head are global over the ranks, so
// the mask does not depend on their distribution. Forward and backward recompute it.
struct AttentionDropout {
  float p = 0;  // 0: none
  Philox philox = {};
  int64_t first_sample = 0, first_head = 0, all_heads = 1;

  // Index i of key 0 and query 0 of the op's sample b and query head h.
  constexpr uint64_t first_of(int64_t b, int64_t h, int64_t seq) const {
    return uint64_t(((first_sample + b) * all_heads + first_head + h) * seq * seq);
  }
};

// qkv: [batch * seq, (heads + 2 * kv_heads) * head_dim], a row holds all queries, then all keys, then all
// values. y: [batch * seq, heads * head_dim]. lse: [batch, heads, seq] fp32, log of the softmax denominator
// for the backward. Query head h reads key/value head h / (heads / kv_heads). `scale` multiplies q k^T; 0
// means 1 / sqrt(head_dim). If cap is not 0, a visible score s becomes cap * tanh(s / cap).
struct AttentionForward {
  Tensor y, lse;
  Tensor qkv;
  int64_t batch = 1, seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
  float scale = 0, cap = 0;
  AttentionMask mask = {};
  AttentionDropout dropout = {};
  void check() const;
  Traffic traffic() const { return {y, qkv}; }
  int64_t variant() const { return head_dim; }
  // Two products, each with a multiplication and an addition.
  double flops() const { return 4.0 * double(batch * heads) * mask.pairs(seq) * double(head_dim); }
};
CLEAVE_KERNEL(AttentionForward)

// Computes dqkv (overwrites every element) from dy and the forward's y, lse, qkv and parameters. The order of
// sums does not depend on the number of threads. dqkv must not alias qkv.
struct AttentionBackward {
  Tensor dqkv, dy;
  AttentionForward forward;
  void check() const;
  Traffic traffic() const { return {dqkv, dy, forward.qkv, forward.y}; }
  int64_t variant() const { return forward.head_dim; }
  double flops() const { return 2.5 * forward.flops(); }  // five products instead of two
};
CLEAVE_KERNEL(AttentionBackward)

}  // namespace cleave::kernels
