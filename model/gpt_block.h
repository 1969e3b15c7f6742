// One transformer block of GPT-2: x -> x + attention(norm(x)) -> that + mlp(norm(that)).
#pragma once
#include "model/gpt.h"

namespace cleave {

std::unique_ptr<Layer> make_gpt_block(const GptConfig& config, int64_t seq, int index);

// Random numbers of one dropout: a function of the step and of where in the model it is.
inline Philox dropout_stream(const Position& p, std::string_view where) {
  return {p.seed, hash_name(where) ^ (uint64_t(p.step) * 0x9E3779B97F4A7C15ull)};
}

}  // namespace cleave
