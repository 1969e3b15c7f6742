#include <fmt/ranges.h>

#include <algorithm>
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

namespace {

void expect_frozen(const std::vector<UnitSpec>& units, const config::FreezeRule& rule) {
  for (const UnitSpec& u : units)
    for (const ParamSpec& p : u.params)
      require(u.frozen || !rule.applies_to(p.name), Exit::usage,
              "cleave.freeze: {} belongs to a layer outside this library; set frozen in its units()", p.name);
}

// Returns "q_proj, k_proj" for layers.0.self_attn.q_proj, layers.0.self_attn.k_proj,
// layers.1.self_attn.q_proj and so on.
std::string last_parts(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (const std::string& name : names)
    if (std::string part = name.substr(name.rfind('.') + 1);
        std::find(parts.begin(), parts.end(), part) == parts.end())
      parts.push_back(part);
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

void Layer::join(std::span<const StateViews> states, Stream&) const {
  CHECK(states.empty(), "a layer with states has no join()");
}

void Layer::freeze(const config::FreezeRule& rule) { expect_frozen(units(), rule); }
void Head::freeze(const config::FreezeRule& rule) { expect_frozen(units(), rule); }

void Model::freeze(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return;
  const config::FreezeRule rule(patterns, prefix);
  const std::vector<std::string> idle = rule.idle_patterns(units());
  require(idle.empty(), Exit::usage, "cleave.freeze: no parameter of {} is called \"{}\"; the nearest is {}",
          name, idle.empty() ? "" : idle.front(),
          idle.empty() ? "" : config::nearest_name(idle.front(), units()));
  for (const auto& layer : layers) layer->freeze(rule);
  head->freeze(rule);
  require(frozen_params() < params(), Exit::usage,
          "cleave.freeze: {} matches every parameter of {}, so nothing would train; remove some patterns",
          fmt::join(patterns, ", "), name);
}

void Model::attach(const std::vector<std::string>& targets, config::AdapterSize size) {
  if (targets.empty()) return;
  const config::AdapterRule rule(targets, size, prefix);
  std::vector<std::string> linears;
  for (const auto& layer : layers) layer->attach(rule, linears);
  const std::vector<std::string> idle = rule.idle_targets(linears);
  require(idle.empty(), Exit::usage,
          "cleave.lora.targets: the blocks of {} have no linear layer \"{}\"; available: {}", name,
          idle.empty() ? "" : idle.front(), linears.empty() ? "none" : last_parts(linears));
  for (const auto& layer : layers) layer->freeze(config::FreezeRule({"*"}));
  head->freeze(config::FreezeRule({"*"}));
}

void Model::use_fp8(const config::Fp8Rule& rule) {
  if (!rule) return;
  bool any = false;
  for (const auto& layer : layers) any = layer->use_fp8(rule) || any;
  require(any, Exit::usage, "cleave.fp8: {} has no transformer blocks, so FP8 does not apply", name);
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

int64_t Model::frozen_params() const {
  int64_t sum = 0;
  for (const UnitSpec& u : units())
    for (const ParamSpec& p : u.params) sum += u.frozen ? p.whole_numel() : 0;
  return sum;
}

int64_t Model::params() const {
  int64_t sum = 0;
  for (const UnitSpec& u : units())
    for (const ParamSpec& p : u.params) sum += p.whole_numel();
  return sum;
}

}  // namespace cleave::model
