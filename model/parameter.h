// A parameter is a named member of the part of a layer that declares it. A layer collects the units of all
// its parts; from then on each parameter finds its own tensors among those that a call brings.
#pragma once
#include "config_schema/freeze_rule.h"
#include "core/param_spec.h"
#include "model/layer_args.h"

namespace cleave::model {

struct DeclaredUnit;

class Parameter {
 public:
  Parameter() = default;  // there is none, as the bias of a dense layer without one
  explicit Parameter(ParamSpec spec) : spec_(std::move(spec)) {}

  explicit operator bool() const { return !spec_.name.empty(); }
  const ParamSpec& spec() const { return spec_; }
  // This parameter among the layer's parameters or gradients; undefined and null where there is no parameter,
  // or where the call brings none, as each part of a split backward leaves one of the two out.
  Tensor in(std::span<const Tensor> params) const;
  ParamGradient* in(std::span<ParamGradient> grads) const;

 private:
  friend std::vector<UnitSpec> settle(const std::vector<DeclaredUnit>& units, const config::FreezeRule& rule);
  ParamSpec spec_;
  int index_ = -1;
};

// A unit whose parameters several parts of a layer declare. They stay where they are from then on.
struct DeclaredUnit {
  std::string name;
  std::vector<Parameter*> params = {};
  bool frozen = false;
  bool attached = false;  // adapters beside the other parameters: rules that freeze are not for them
  // Parameters that are one matrix to the layer, as q_proj, k_proj and v_proj.
  std::vector<std::vector<Parameter*>> as_one = {};
  void add(Parameter& p) {
    if (p) params.push_back(&p);
  }
};

// The units as Layer::units gives them; settles where each parameter is found. Of a unit of which the rule
// fits some parameters, these become a frozen one behind it. Error(usage) where it fits a part of what is
// one.
std::vector<UnitSpec> settle(const std::vector<DeclaredUnit>& units, const config::FreezeRule& rule = {});

}  // namespace cleave::model
