// Trial of other attention implementations against the kernels for all GPUs.
#pragma once
#include "kernels/cuda/attention_routes.h"
#include "kernels/cuda/trial.h"

namespace cleave::kernels::gpu {

// Runs a few heads of the shape, one sequence of at most 1024 tokens, with `forward` and `backward` and with
// run_own. Returns the difference or the failure.
Verdict attention_difference(const AttentionShape& shape,
                             const std::function<void(const AttentionForward&)>& forward,
                             const std::function<void(const AttentionBackward&)>& backward, Stream& stream);

// " in bf16 for 8 x 1024 tokens, ..."
std::string words(const AttentionShape& shape);

// Returns true if the queue's GPU has Hopper's warpgroup instructions.
bool on_hopper(CudaQueue& queue);

}  // namespace cleave::kernels::gpu
