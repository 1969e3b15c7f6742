// Fused softmax cross-entropy on a chunk of tokens.
#pragma once
#include "kernels/launch.h"

namespace cleave {

// For every row: losses[i] = -log softmax(logits[i])[targets[i]] over the first `vocab` columns, 0 where the
// target is -100; and, when scale != 0, the gradient scale * (softmax - onehot), 0 for ignored rows and in
// padding columns. It goes to dlogits, of the shape of logits and any float type, or in place of the logits
// when dlogits is undefined. logits: [rows, columns >= vocab] fp32, bf16 or fp16; targets: [rows] int32;
// losses: [rows] fp32. A target outside [0, vocab) other than -100 throws Error(data).
struct CrossEntropy {
  Tensor logits, losses;
  Tensor dlogits = {};
  Tensor targets;
  int64_t vocab = 0;
  float scale = 0;
  void check() const;
};
CLEAVE_KERNEL(CrossEntropy)

}  // namespace cleave
