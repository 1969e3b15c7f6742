// Multi-head attention that never stores a T x T matrix (online softmax as in FlashAttention, arXiv
// 2205.14135).
#pragma once
#include <algorithm>

#include "core/philox.h"
#include "kernels/launch.h"

namespace cleave::kernels {

// The widest head of the GPU's bodies; the CPU's have no limit.
inline constexpr int64_t kGpuHeadDim = 256;

// Which keys a query sees: of its sequence all up to its own position, or fewer of these. What a query sees
// is an unbroken run of keys that ends with its own and begins no earlier than that of the query before, so
// the kernels pass over whole blocks of hidden keys.
struct AttentionMask {
  // False: a query sees every key of its sequence, as in an encoder; then there is neither of the others.
  bool causal = true;
  // The last `window` positions, the query's own among them; 0: all of them.
  int64_t window = 0;
  // int32 [batch, seq], or undefined. A query sees keys of its own document only: for each position that
  // one of its sequence at which its document begins, which is 0 at the first position, never falls from one
  // position to the next, and is never behind the position itself.
  Tensor documents = {};

  // The window where it hides anything of `seq` positions, else 0.
  int64_t window_in(int64_t seq) const { return window < seq ? window : 0; }
  // Pairs of a query and a key that it sees in one sequence. Documents lie in memory that need not be written
  // yet; they count as one.
  double pairs(int64_t seq) const {
    if (!causal) return double(seq) * double(seq);
    const double all = double(seq), seen = double(window > 0 ? std::min(window, seq) : seq);
    return seen * (seen + 1) / 2 + (all - seen) * seen;
  }
};

// Dropout of what the softmax gives: a query's weight of a key becomes 0 where philox.uniform(i) < p, and is
// divided by 1 - p elsewhere, with i = ((sample * all_heads + head) * seq + query) * seq + key. Sample and
// head are counted over all ranks, so the mask does not depend on how they are dealt out; forward and
// backward make it anew.
struct AttentionDropout {
  float p = 0;  // 0: none
  Philox philox = {};
  int64_t first_sample = 0, first_head = 0, all_heads = 1;

  // The number of the first key of query 0 of sample b and query head h of the op.
  constexpr uint64_t first_of(int64_t b, int64_t h, int64_t seq) const {
    return uint64_t(((first_sample + b) * all_heads + first_head + h) * seq * seq);
  }
};

// qkv: [batch * seq, (heads + 2 * kv_heads) * head_dim], a row holding all queries, then all keys, then all
// values; y: [batch * seq, heads * head_dim]; lse: [batch, heads, seq] fp32, the log of the softmax
// denominator for backward. Query head h reads key/value head h / (heads / kv_heads). scale is applied to q
// k^T; 1 / sqrt(head_dim) when 0. A score s that is seen becomes cap * tanh(s / cap) where cap is not 0.
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
  // Two products of a multiplication and an addition.
  double flops() const { return 4.0 * double(batch * heads) * mask.pairs(seq) * double(head_dim); }
};
CLEAVE_KERNEL(AttentionForward)

// dqkv (every element overwritten) from dy and the forward that ran: its output y, lse and input qkv are
// read, and its mask and the like are meant. Sums run in an order that does not depend on the number of
// threads. dqkv must not alias qkv.
struct AttentionBackward {
  Tensor dqkv, dy;
  AttentionForward forward;
  void check() const;
  Traffic traffic() const { return {dqkv, dy, forward.qkv, forward.y}; }
  int64_t variant() const { return forward.head_dim; }
  double flops() const { return 2.5 * forward.flops(); }  // five products to two
};
CLEAVE_KERNEL(AttentionBackward)

}  // namespace cleave::kernels
