#include "model/parameter.h"

namespace cleave::model {

Tensor Parameter::in(std::span<const Tensor> params) const {
  if (spec_.name.empty() || params.empty()) return {};
  CHECK(place_ >= 0 && size_t(place_) < params.size(), "{}: place {} of {} parameters", spec_.name, place_,
        params.size());
  return params[size_t(place_)];
}

ParamGradient* Parameter::in(std::span<ParamGradient> grads) const {
  if (spec_.name.empty() || grads.empty()) return nullptr;
  CHECK(place_ >= 0 && size_t(place_) < grads.size(), "{}: place {} of {} gradients", spec_.name, place_,
        grads.size());
  return &grads[size_t(place_)];
}

std::vector<UnitSpec> settle(const std::vector<DeclaredUnit>& units) {
  std::vector<UnitSpec> specs;
  int place = 0;
  for (const DeclaredUnit& unit : units) {
    UnitSpec& spec = specs.emplace_back(UnitSpec{unit.name, {}, unit.frozen});
    for (Parameter* p : unit.params) p->place_ = place++, spec.params.push_back(p->spec());
  }
  return specs;
}

}  // namespace cleave::model
