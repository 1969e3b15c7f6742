// Implementations of attention on a GPU. Operands are checked and not empty.
#pragma once
#include <compare>

#include "kernels/attention.h"

namespace cleave::kernels::gpu {

// Maximum head dim of all implementations except the plain kernels.
inline constexpr int64_t kTensorCoreHeadDim = 128;

// A shape to be tried.
struct AttentionShape {
  int64_t batch, seq, heads, kv_heads, dim;
  DType type;              // bf16 or fp16
  int64_t window = 0;      // the window if it hides keys, else 0
  bool documents = false;  // whether the mask has documents
  auto operator<=>(const AttentionShape&) const = default;
};

// Forward parameters of either op.
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

// Own kernels for all GPUs. Support every op and serve as the reference of the other implementations.
void run_own(const AttentionForward& op, Stream& stream);
void run_own(const AttentionBackward& op, Stream& stream);
// cuDNN. Returns false if cuDNN is missing, does not support the shape or mask, or failed its trial; run_own
// can then compute the op.
bool library_attention(const AttentionForward& op, Stream& stream);
bool library_attention(const AttentionBackward& op, Stream& stream);
// Own Hopper kernels with warpgroup products. Returns false if they do not support the op or failed their
// trial.
bool warpgroup_attention(const AttentionForward& op, Stream& stream);
bool warpgroup_attention(const AttentionBackward& op, Stream& stream);
// The same kernels, for a supported op.
void run_on_warpgroups(const AttentionForward& op, Stream& stream);
void run_on_warpgroups(const AttentionBackward& op, Stream& stream);

}  // namespace cleave::kernels::gpu
