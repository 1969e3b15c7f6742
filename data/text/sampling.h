// Selects the next token of a generated text from the logits of all tokens. Options have the meaning and the
// order of Hugging Face transformers: penalty, temperature, top_k, top_p.
#pragma once
#include <cstdint>
#include <span>

namespace cleave::text {

struct Sampling {
  double temperature = 0.8;       // 0 takes the most likely token
  int64_t top_k = 0;              // number of most likely tokens to sample from; 0: all
  double top_p = 1;               // smallest set of most likely tokens with this total probability
  double repetition_penalty = 1;  // of earlier tokens: divides positive logits, multiplies others
  uint64_t seed = 42;
};

// `before` are the tokens of the text so far; `index` numbers the draws of one seed. A pure function of its
// arguments. Throws Error(training) for NaN or infinite logits.
int32_t next_token(std::span<const float> logits, std::span<const int32_t> before, const Sampling& sampling,
                   uint64_t index);

}  // namespace cleave::text
