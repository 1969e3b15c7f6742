// Token and position embedding.
#pragma once
#include "kernels/launch.h"

namespace cleave {

// y[i, :] = wte[tokens[i], :] + wpe[first_position + i % seq, :]; tokens: [rows] int32, every one in [0,
// vocab) (the body throws Error(data) naming the token and its place otherwise); y: [rows, width]; wte:
// [vocab, width]; wpe: [positions, width] or undefined.
struct EmbeddingForward {
  Tensor y;
  Tensor tokens, wte, wpe = {};
  int64_t seq = 1, first_position = 0;
  void check() const;
};
CLEAVE_KERNEL(EmbeddingForward)

// dwte[tokens[i], :] += dy[i, :], dwpe[i % seq, :] += dy[i, :]. Deterministic: each row of dwte adds its
// tokens in order. Without accumulate_wte (accumulate_wpe) the whole gradient is zeroed first. Sums are
// rounded once for each call.
struct EmbeddingBackward {
  Tensor dwte, dwpe = {};
  Tensor dy, tokens;
  int64_t seq = 1;
  bool accumulate_wte = false, accumulate_wpe = false;
  void check() const;
};
CLEAVE_KERNEL(EmbeddingBackward)

}  // namespace cleave
