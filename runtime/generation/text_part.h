// Continuation of a text in the engine's KV cache (Engine::extend).
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::runtime {

struct TextPart {
  int64_t text = 0;   // below Engine::texts()
  int64_t begin = 0;  // position of the first token, at most the text's length; drops cached positions from
                      // there on
  std::vector<int32_t> tokens = {};  // not empty; all positions must fit the model's sequence length
};

}  // namespace cleave::runtime
