// Rotary position embedding (Su et al., arXiv 2104.09864).
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// Turns the queries and keys of qkv, a tensor as AttentionForward reads it, in place. Row r stands at
// position p = first_position + r % seq, or where documents are given so many positions behind
// documents[r], that of its sequence at which its document begins, as AttentionMask has it, or where
// positions are given (and documents are not) at positions[r]; elements i and i + head_dim / 2 of a head are
// a point in the plane, turned by the angle whose cosine and sine are cos[p, i] and sin[p, i] (the pairing of
// Hugging Face's rotate_half). Values are left alone. inverse turns back, which is also the gradient's way
// through the op. cos, sin: fp32 [positions, head_dim / 2], positions > every p.
struct Rotary {
  Tensor qkv;
  Tensor cos, sin;
  Tensor documents = {}, positions = {};  // int32, one a row, or undefined
  int64_t seq = 1, heads = 1, kv_heads = 1, head_dim = 2, first_position = 0;
  bool inverse = false;
  void check() const;
  Traffic traffic() const {
    return {qkv.dtype(), 2.0 * double(qkv.dim(0) * (heads + kv_heads) * head_dim * size_of(qkv.dtype()))};
  }
  Traffic least() const { return {qkv.dtype(), 0}; }
};
CLEAVE_KERNEL(Rotary)

}  // namespace cleave::kernels
