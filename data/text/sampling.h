// The next token of a generated text, from the logits of all tokens. The options mean what they mean in
// Hugging Face's transformers, and work in its order: penalty, temperature, top_k, top_p.
#pragma once
#include <cstdint>
#include <span>

namespace cleave::text {

struct Sampling {
  double temperature = 0.8;  // 0 takes the likeliest
  int64_t top_k = 0;         // among so many of the likeliest; 0: all
  double top_p = 1;          // among the fewest of the likeliest that have this probability together
  double repetition_penalty =
      1;  // what stood before: positive logits divided by it, others multiplied with it
  uint64_t seed = 42;
};

// `before` are the tokens of the text so far; `index` numbers the draws of one seed. A function of its
// arguments alone. Error(training) for logits that are no numbers, or infinite.
int32_t next_token(std::span<const float> logits, std::span<const int32_t> before, const Sampling& sampling,
                   uint64_t index);

}  // namespace cleave::text
