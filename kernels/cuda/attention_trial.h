// What stands in front of every other way of attention than the kernels that every GPU has.
#pragma once
#include "kernels/cuda/attention_routes.h"
#include "kernels/cuda/trial.h"

namespace cleave::kernels::gpu {

// Runs a few heads of the shape, one sequence and no more than 1024 tokens of it, by `forward` and `backward`
// and by run_own; what they differ in, or what failed.
Verdict attention_difference(const AttentionShape& shape,
                             const std::function<void(const AttentionForward&)>& forward,
                             const std::function<void(const AttentionBackward&)>& backward, Stream& stream);

// " in bf16 for 8 x 1024 tokens, ..."
std::string words(const AttentionShape& shape);

// Whether the queue's GPU has Hopper's own matrix instructions.
bool on_hopper(CudaQueue& queue);

}  // namespace cleave::kernels::gpu
