// Selects the attention kernels for Hopper: on its GPUs, for every shape and mask that the other tensor-core
// kernels support, after a successful trial of the shape.
#include "kernels/cuda/attention_trial.h"

namespace cleave::kernels::gpu {
namespace {

constexpr const char* kSwitch = "CLEAVE_WGMMA";

Verdict trial(const AttentionShape& shape, Stream& stream) {
  return attention_difference(
      shape, [&](const AttentionForward& op) { run_on_warpgroups(op, stream); },
      [&](const AttentionBackward& op) { run_on_warpgroups(op, stream); }, stream);
}

bool aligned(const AttentionForward& op) { return all_aligned({op.y, op.qkv}); }
bool aligned(const AttentionBackward& op) { return all_aligned({op.dqkv, op.dy, op.forward.qkv}); }

template <class Op>
bool on_warpgroups(const Op& op, Stream& stream) {
  const AttentionShape s = shape_of(forward_of(op));
  // Their softmax takes the maximum before scaling.
  if (s.type == DType::fp32 || s.dim % 8 || s.dim > kTensorCoreHeadDim || forward_of(op).scale < 0 ||
      !aligned(op))
    return false;
  if (!on_hopper(cuda_queue(stream))) return false;
  if (!proved("the warpgroups' attention" + words(s), kSwitch, stream, [&] { return trial(s, stream); }))
    return false;
  run_on_warpgroups(op, stream);
  return true;
}

}  // namespace

bool warpgroup_attention(const AttentionForward& op, Stream& stream) { return on_warpgroups(op, stream); }
bool warpgroup_attention(const AttentionBackward& op, Stream& stream) { return on_warpgroups(op, stream); }

}  // namespace cleave::kernels::gpu
