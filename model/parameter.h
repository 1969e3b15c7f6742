// Named parameter, a member of the layer part that declares it. A layer collects the units of all its parts;
// afterwards each parameter finds its own tensors among those of a call.
#pragma once
#include "config_schema/freeze_rule.h"
#include "core/param_spec.h"
#include "model/layer_args.h"

namespace cleave::model {

struct DeclaredUnit;

class Parameter {
 public:
  Parameter() = default;  // no parameter, such as the bias of a dense layer without one
  explicit Parameter(ParamSpec spec) : spec_(std::move(spec)) {}

  explicit operator bool() const { return !spec_.name.empty(); }
  const ParamSpec& spec() const { return spec_; }
  // Returns this parameter from the layer's parameters or gradients; undefined or null if there is no
  // parameter, or if the call has none (each part of a split backward omits one of the two lists).
  Tensor in(std::span<const Tensor> params) const;
  ParamGradient* in(std::span<ParamGradient> grads) const;

 private:
  friend std::vector<UnitSpec> settle(const std::vector<DeclaredUnit>& units, const config::FreezeRule& rule);
  ParamSpec spec_;
  int index_ = -1;
};

// Unit with parameters declared by several parts of a layer. The parameters must stay in place from then on.
struct DeclaredUnit {
  std::string name;
  std::vector<Parameter*> params = {};
  bool frozen = false;
  bool attached = false;  // adapters: rules that freeze do not apply to them
  // Parameters that form one matrix of the layer, such as q_proj, k_proj and v_proj.
  std::vector<std::vector<Parameter*>> as_one = {};
  void add(Parameter& p) {
    if (p) params.push_back(&p);
  }
};

// Returns the units for Layer::units and fixes the index of each parameter. If the rule matches some
// parameters of a unit, these form a frozen unit after it. Throws Error(usage) if it matches a part of a
// joint matrix.
std::vector<UnitSpec> settle(const std::vector<DeclaredUnit>& units, const config::FreezeRule& rule = {});

}  // namespace cleave::model
