// Fused softmax cross-entropy on a chunk of tokens.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// For every row: losses[i] = -log softmax(logits[i])[targets[i]] over the first `vocab` columns, 0 where the
// target is -100; and, when scale != 0, the gradient scale * (softmax - onehot), 0 for ignored rows and in
// padding columns. It goes to dlogits, of the shape of logits and any float type, or in place of the logits
// when dlogits is undefined. logits: [rows, columns >= vocab] fp32, bf16 or fp16; targets: [rows] int32;
// losses: [rows] fp32. A target outside [0, vocab) other than -100 throws Error(data). Where cap is not 0,
// logits are what SoftCap made with this cap, and the gradient is that of what it was given.
//
// Where hits are asked for, hits[i] = 1 if the target is the row's most likely class, else 0: no logit is
// larger than the target's, and none before it is equal, as the argmax of PyTorch and NumPy decides ties. An
// ignored row is no hit, and neither is one whose loss is not a number.
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

// The same loss where the columns are cut over ranks (Megatron-LM, arXiv 1909.08053, section 3): every rank
// holds the logits of tokens [first, first + vocab). First, of each row: stats[row] = {largest logit, sum of
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

// Then, with the stats of all parts in rank order: losses, and the gradient as CrossEntropy gives it. A
// target that is neither -100 nor in [0, all_vocab) throws Error(data). A hit is one in the part that has the
// target alone, so hits of the parts add up to those of the whole.
struct CrossEntropyPart {
  Tensor losses;  // [rows] fp32
  Tensor dlogits = {};
  Tensor logits, targets;
  Tensor stats;  // [parts, rows, 3] fp32
  int64_t vocab = 0, first = 0, all_vocab = 0;
  float scale = 0, cap = 0;
  Tensor hits = {};  // [rows] fp32
  int64_t part = 0;  // which of the parts these logits are, where hits are asked for
  void check() const;
  Traffic traffic() const { return {logits, dlogits.defined() ? dlogits : logits}; }
  Traffic least() const {
    return {logits.dtype(), dlogits.defined() ? double(dlogits.bytes() - logits.bytes()) : 0};
  }
};
CLEAVE_KERNEL(CrossEntropyPart)

}  // namespace cleave::kernels
