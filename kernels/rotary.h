// Rotary position embedding (Su et al., arXiv 2104.09864).
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// Rotates the queries and keys of qkv (layout of AttentionForward) in place. The position p of row r is
// first_position + r % seq; if documents are given, minus documents[r], the start of its document as in
// AttentionMask; if positions are given instead, positions[r]. Elements i and i + head_dim / 2 of a head are
// a point in the plane, rotated by the angle with cosine cos[p, i] and sine sin[p, i] (the pairing of Hugging
// Face's rotate_half). Values are unchanged. `inverse` rotates back, which is also the gradient of the op.
// cos, sin: fp32 [positions, head_dim / 2], positions > every p.
struct Rotary {
  Tensor qkv;
  Tensor cos, sin;
  Tensor documents = {}, positions = {};  // int32, one per row, or undefined
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
