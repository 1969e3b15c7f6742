// What an optimizer is to the rest of the program: how many fp32 states it keeps a parameter, and an update
// of any slice of it. It knows nothing of ranks, stages or where the slices live.
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
  std::vector<Rates> groups = {};  // of each UnitSpec::group, in place of `rates`; empty: none differs
  double grad_scale = 1;  // multiplies every gradient: unscaling, averaging and clipping in one factor
  int64_t step = 1;       // 1-based count of updates really applied

  // The same for the units of a group.
  StepArgs of(int group) const {
    return {
        .rates = groups.empty() ? rates : groups.at(size_t(group)), .grad_scale = grad_scale, .step = step};
  }
};

// Of an optimizer, at most.
inline constexpr int kMostStates = 3;

// Equal numel. param and state are fp32; grad any float type; copy is the working copy to refresh, or
// undefined.
struct UpdateSlice {
  Tensor param, grad, copy;
  std::array<Tensor, kMostStates> state;
  bool decay = false;  // weight decay applies to these elements
  std::array<double, 2> squares =
      {};  // what prepare added up over the whole parameter, where it is asked for
  // Where slices are of one parameter each: the unit, the parameter's index in it, and which of its elements.
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
  virtual std::vector<std::string> states()
      const = 0;  // names as checkpoints spell them: {"exp_avg", "exp_avg_sq"}
  virtual void update(const UpdateSlice& slice, const StepArgs& args, Stream& stream) const = 0;

  // Whether an update depends on sums over the whole parameter that a slice is of. Then every slice of it
  // goes through prepare first, which adds its part to squares (fp64 [2], where state is) and has the last
  // use of grad, and through update when they were added up.
  virtual bool prepares() const { return false; }
  virtual void prepare(const UpdateSlice&, const StepArgs&, Tensor /*squares*/, Stream&) const {}
  // Whether every slice is of one parameter, which it names.
  virtual bool by_parameter() const { return prepares(); }
};

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerConfig& config);

// An optimizer that is computed elsewhere, one slice of one parameter at a time, by whoever holds it.
struct OutsideUpdate {
  std::vector<std::string> states = {};  // as Optimizer::states(), at most kMostStates
  // On memory that nothing uses meanwhile, and done when it returns; it may overwrite grad, and leaves copy
  // alone. What it throws ends the step.
  std::function<void(const UpdateSlice& slice, const StepArgs& args)> update = {};
};
std::unique_ptr<Optimizer> outside_optimizer(OutsideUpdate update);

}  // namespace cleave::optim
