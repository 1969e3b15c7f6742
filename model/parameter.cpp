#include "model/parameter.h"

#include <algorithm>

namespace cleave::model {

Tensor Parameter::in(std::span<const Tensor> params) const {
  if (spec_.name.empty() || params.empty()) return {};
  CHECK(index_ >= 0 && size_t(index_) < params.size(), "{}: index {} of {} parameters", spec_.name, index_,
        params.size());
  return params[size_t(index_)];
}

ParamGradient* Parameter::in(std::span<ParamGradient> grads) const {
  if (spec_.name.empty() || grads.empty()) return nullptr;
  CHECK(index_ >= 0 && size_t(index_) < grads.size(), "{}: index {} of {} gradients", spec_.name, index_,
        grads.size());
  return &grads[size_t(index_)];
}

namespace {

void expect_one(const std::vector<Parameter*>& parts, const config::FreezeRule& rule) {
  const auto fits = [&](const Parameter* p) { return rule.applies_to(p->spec().name); };
  const auto first = std::find_if(parts.begin(), parts.end(), fits);
  const auto other = std::find_if_not(parts.begin(), parts.end(), fits);
  if (first == parts.end() || other == parts.end()) return;
  fail(Exit::usage,
       "cleave.freeze: {} matches and {} does not, but they are one product; freeze both or neither",
       (*first)->spec().name, (*other)->spec().name);
}

}  // namespace

std::vector<UnitSpec> settle(const std::vector<DeclaredUnit>& units, const config::FreezeRule& rule) {
  std::vector<UnitSpec> specs;
  int index = 0;
  const auto add = [&](const std::string& name, const std::vector<Parameter*>& params, bool frozen) {
    if (params.empty()) return;
    UnitSpec& spec = specs.emplace_back(UnitSpec{name, {}, frozen});
    for (Parameter* p : params) p->index_ = index++, spec.params.push_back(p->spec());
  };
  for (const DeclaredUnit& unit : units) {
    for (const auto& parts : unit.as_one) expect_one(parts, rule);
    std::vector<Parameter*> trained, frozen;
    for (Parameter* p : unit.params)
      (unit.frozen || (!unit.attached && rule.applies_to(p->spec().name)) ? frozen : trained).push_back(p);
    add(unit.name, trained, false);
    add(trained.empty() ? unit.name : unit.name + ".frozen", frozen, true);
  }
  return specs;
}

}  // namespace cleave::model
