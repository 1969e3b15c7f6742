#include "runtime/stage/stage_layers.h"

#include <algorithm>

namespace cleave::runtime {

std::vector<UnitSpec> units_of(const model::Model& model, const StageShape& stage) {
  std::vector<UnitSpec> out;
  const auto add = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units) {
      const auto at =
          std::find_if(out.begin(), out.end(), [&](const UnitSpec& o) { return o.name == u.name; });
      if (at == out.end()) {
        out.push_back(u);
        continue;
      }
      require(u.frozen == at->frozen, Exit::usage,
              "{}: two layers share it, but only one of them freezes it; freeze both or neither", u.name);
    }
  };
  for (const Range& chunk : stage.chunks)
    for (int64_t l = chunk.begin; l < chunk.end; ++l) add(model.layers[size_t(l)]->units());
  if (stage.last) add(model.head->units());
  return out;
}

}  // namespace cleave::runtime
