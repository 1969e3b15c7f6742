// Fused softmax cross-entropy for a chunk of tokens.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// For every row: losses[i] = -log softmax(logits[i])[targets[i]] over the first `vocab` columns, 0 if the
// target is -100. If scale != 0, also the gradient scale * (softmax - onehot), 0 for ignored rows and in
// padding columns; it is written to dlogits (shape of logits, any float type), or over the logits if dlogits
// is undefined. logits: [rows, columns >= vocab] fp32, bf16 or fp16; targets: [rows] int32; losses: [rows]
// fp32. A target outside [0, vocab) other than -100 throws Error(data). If cap is not 0, logits are the
// output of SoftCap with this cap, and the gradient is that of its input.
//
// If hits is defined, hits[i] = 1 if the target is the row's most likely class, else 0: no logit is larger
// than the target's, and none before it is equal, the tie rule of argmax in PyTorch and NumPy. Ignored rows
// and rows with a NaN loss count as 0.
struct CrossEntropy {
  Tensor logits, losses;
  Tensor dlogits = {};
  Tensor targets;
  int64_t vocab = 0;
  float scale = 0, cap = 0;
  Tensor hits = {};  // [rows] fp32
  void check() const;
  Traffic traffic() const { return {logits, dlogits.defined() ? dlogits : logits}; }
  Traffic least() const {
    return {logits.dtype(), dlogits.defined() ? double(dlogits.bytes() - logits.bytes()) : 0};
  }
};
CLEAVE_KERNEL(CrossEntropy)

// The same loss for columns divided over ranks (Megatron-LM, arXiv 1909.08053, section 3): every rank holds
// the logits of tokens [first, first + vocab). First step, per row: stats[row] = {largest logit, sum of
// e^(logit - largest), the target's logit, or 0 if another rank holds it}. A part without tokens gives {-inf,
// 0, 0}.
struct SoftmaxPart {
  Tensor stats;  // [rows, 3] fp32
  Tensor logits, targets;
  int64_t vocab = 0, first = 0;
  void check() const;
  Traffic traffic() const { return {logits}; }
  Traffic least() const { return {logits.dtype(), 0}; }
};
CLEAVE_KERNEL(SoftmaxPart)

// Second step, with the stats of all parts in rank order: losses and gradient as in CrossEntropy. A target
// that is neither -100 nor in [0, all_vocab) throws Error(data). Only the part with the target counts a hit,
// so hits of the parts add up to those of the whole.
struct CrossEntropyPart {
  Tensor losses;  // [rows] fp32
  Tensor dlogits = {};
  Tensor logits, targets;
  Tensor stats;  // [parts, rows, 3] fp32
  int64_t vocab = 0, first = 0, all_vocab = 0;
  float scale = 0, cap = 0;
  Tensor hits = {};  // [rows] fp32
  int64_t part = 0;  // index of this part; used for hits
  void check() const;
  Traffic traffic() const { return {logits, dlogits.defined() ? dlogits : logits}; }
  Traffic least() const {
    return {logits.dtype(), dlogits.defined() ? double(dlogits.bytes() - logits.bytes()) : 0};
  }
};
CLEAVE_KERNEL(CrossEntropyPart)

}  // namespace cleave::kernels
