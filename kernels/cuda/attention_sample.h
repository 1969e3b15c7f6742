// Compares parts of a causal attention call with the kernels for all GPUs, on the call's own data. Other
// implementations plan a call by its whole shape, which a trial of a smaller one does not run.
#pragma once
#include <limits>
#include <optional>

#include "kernels/cuda/attention_routes.h"
#include "kernels/cuda/trial.h"

namespace cleave::kernels::gpu {

inline constexpr int64_t kWholeSequence = std::numeric_limits<int64_t>::max();

// Computes a head of the first sequence and one of the last again, and returns the first difference to the
// results of `op`. Returns nothing if a result computed again is not finite, as in a step whose loss scale is
// too large. Sequences longer than `most_tokens`, or than the scratch has room for, are compared in part:
// outputs and gradients of queries at the begin, gradients of keys and values at the end. Waits for the
// stream. Requires a causal mask without window and documents, and no dropout.
std::optional<Verdict> sampled_difference(const AttentionForward& op, Stream& stream,
                                          int64_t most_tokens = kWholeSequence);
std::optional<Verdict> sampled_difference(const AttentionBackward& op, Stream& stream,
                                          int64_t most_tokens = kWholeSequence);

}  // namespace cleave::kernels::gpu
