// What makes a text longer that an engine keeps (Engine::extend).
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::runtime {

struct TextPart {
  int64_t text = 0;   // below Engine::texts()
  int64_t begin = 0;  // where its tokens stand: at most what the text has; what it had from there on is gone
  std::vector<int32_t> tokens = {};  // at least one; no position beyond the model's sequence
};

}  // namespace cleave::runtime
