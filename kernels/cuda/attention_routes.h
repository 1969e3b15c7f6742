// The ways in which attention is computed on a GPU. Operands were checked and are not empty.
#pragma once
#include <compare>

#include "kernels/attention.h"

namespace cleave::kernels::gpu {

// The widest head of all ways but the plain kernels.
inline constexpr int64_t kTensorCoreHeadDim = 128;

// What a way is tried for.
struct AttentionShape {
  int64_t batch, seq, heads, kv_heads, dim;
  DType type;              // bf16 or fp16
  int64_t window = 0;      // what it hides, else 0
  bool documents = false;  // whether the mask has any
  auto operator<=>(const AttentionShape&) const = default;
};

// What both directions have in common.
inline const AttentionForward& forward_of(const AttentionForward& op) { return op; }
inline const AttentionForward& forward_of(const AttentionBackward& op) { return op.forward; }

inline AttentionShape shape_of(const AttentionForward& op) {
  return {op.batch,
          op.seq,
          op.heads,
          op.kv_heads,
          op.head_dim,
          op.qkv.dtype(),
          op.mask.window_in(op.seq),
          op.mask.documents.defined()};
}

// In the own kernels that every GPU has; all that is asked of a body, and what the other ways are tried
// against.
void run_own(const AttentionForward& op, Stream& stream);
void run_own(const AttentionBackward& op, Stream& stream);
// In cuDNN, where it is there, knows the shape and its mask, and was proved; false: nothing was done that
// run_own does not redo.
bool library_attention(const AttentionForward& op, Stream& stream);
bool library_attention(const AttentionBackward& op, Stream& stream);
// In the own kernels for Hopper, on its warpgroup products, where they take the op and were proved; else
// false.
bool warpgroup_attention(const AttentionForward& op, Stream& stream);
bool warpgroup_attention(const AttentionBackward& op, Stream& stream);
// The same kernels for an op that they take.
void run_on_warpgroups(const AttentionForward& op, Stream& stream);
void run_on_warpgroups(const AttentionBackward& op, Stream& stream);

}  // namespace cleave::kernels::gpu
