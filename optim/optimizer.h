// Interface of optimizers: the number of fp32 states per parameter, and the update of any slice. Optimizers
// do not depend on ranks, stages or homes.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/range.h"
#include "device/stream.h"
#include "device/tensor.h"
#include "optim/rates.h"

namespace cleave::config {
struct OptimizerConfig;  // config_schema/ds_config.h
}

namespace cleave::optim {

struct StepArgs {
  Rates rates = {};
  std::vector<Rates> groups = {};  // per UnitSpec::group, instead of `rates`; empty: all groups use `rates`
  double grad_scale = 1;           // factor of every gradient: unscaling, averaging and clipping
  int64_t step = 1;                // 1-based count of applied updates

  // Arguments for the units of a group.
  StepArgs of(int group) const {
    return {
        .rates = groups.empty() ? rates : groups.at(size_t(group)), .grad_scale = grad_scale, .step = step};
  }
};

// Maximum per optimizer.
inline constexpr int kMostStates = 3;

// Tensors have equal numel. param and state are fp32; grad has any float type; copy is the working copy to
// update, or undefined.
struct UpdateSlice {
  Tensor param, grad, copy;
  std::array<Tensor, kMostStates> state;
  bool decay = false;                  // weight decay applies to these elements
  std::array<double, 2> squares = {};  // sums of prepare over the whole parameter, if used
  // For slices of a single parameter: unit, index of the parameter in it, and its elements.
  int unit = -1, parameter = -1;
  Range elements = {};

  UpdateSlice slice(Range r) const {
    UpdateSlice part = *this;
    for (Tensor* t : {&part.param, &part.grad, &part.copy})
      if (t->defined()) *t = t->slice(r);
    for (Tensor& t : part.state)
      if (t.defined()) t = t.slice(r);
    part.elements = r.shifted(elements.begin);
    return part;
  }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<std::string> states() const = 0;  // names in checkpoints: {"exp_avg", "exp_avg_sq"}
  virtual void update(const UpdateSlice& slice, const StepArgs& args, Stream& stream) const = 0;

  // Returns true if updates depend on sums over the whole parameter. Then prepare runs on all its slices
  // first; it adds their parts to squares (fp64 [2], in the memory kind of state) and is the last use of
  // grad. Updates follow after the sums are complete.
  virtual bool prepares() const { return false; }
  virtual void prepare(const UpdateSlice&, const StepArgs&, Tensor /*squares*/, Stream&) const {}
  // Returns true if every slice must belong to one parameter, with unit, parameter and elements set.
  virtual bool by_parameter() const { return prepares(); }
};

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config);

// An optimizer implemented by the caller, called with one slice of one parameter at a time.
struct OutsideUpdate {
  std::vector<std::string> states = {};  // like Optimizer::states(), at most kMostStates
  // Has exclusive use of the memory. Work on device memory starts after that of the stream so far, and is
  // before its later work; the update of other memory is complete on return. May overwrite grad; must not
  // change copy. An exception ends the step.
  std::function<void(const UpdateSlice& slice, const StepArgs& args, Stream& stream)> update = {};
};
std::unique_ptr<Optimizer> outside_optimizer(OutsideUpdate update);

}  // namespace cleave::optim
