#include <set>

#include "model/layer.h"

namespace cleave::model {

double Layer::flops(const TensorSpec& input) const {
  const Shape y = output(input).shape;
  const double rows = double(y.numel()) / double(y[y.rank - 1]);
  double sum = 0;
  for (const UnitSpec& u : units())
    for (const ParamSpec& p : u.params)
      if (p.shape.size() >= 2) sum += (u.frozen ? 4 : 6) * rows * double(p.numel());
  return sum;
}

std::vector<UnitSpec> Model::units() const {
  std::set<std::string> seen;
  std::vector<UnitSpec> out;
  auto add = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units)
      if (seen.insert(u.name).second) out.push_back(u);
  };
  for (const auto& layer : layers) add(layer->units());
  add(head->units());
  return out;
}

std::string Model::layer_name(int l) const {
  if (l == int(layers.size())) return "head";
  const std::vector<UnitSpec> units = layers[size_t(l)]->units();
  return units.empty() ? fmt::format("layer.{}", l) : units[0].name;
}

int64_t Model::params() const {
  int64_t sum = 0;
  for (const UnitSpec& u : units())
    for (const ParamSpec& p : u.params) sum += p.whole_numel();
  return sum;
}

}  // namespace cleave::model
