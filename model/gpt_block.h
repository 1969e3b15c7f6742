// One transformer block of GPT-2: x -> x + attention(norm(x)) -> that + mlp(norm(that)).
#pragma once
#include "model/gpt.h"

namespace cleave {

// Over a tensor axis each rank computes its heads and its part of the MLP for all rows; norms, dropout and
// residuals are computed where the rows are.
std::unique_ptr<Layer> make_gpt_block(const GptConfig& config, int64_t seq, int index, const Axes& axes = {});

}  // namespace cleave
