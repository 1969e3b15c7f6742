#include <set>

#include "model/layer.h"

namespace cleave {

int64_t Model::params() const {
  std::set<std::string> seen;
  int64_t sum = 0;
  auto count = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units)
      if (seen.insert(u.name).second)
        for (const ParamSpec& p : u.params) sum += p.numel();
  };
  for (const auto& layer : layers) count(layer->units());
  count(head->units());
  return sum;
}

}  // namespace cleave
