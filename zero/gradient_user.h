// Interface of the consumer of gradients that a ParameterStore reduces.
#pragma once
#include <span>

namespace cleave::zero {

// The host makes both calls in the same order on all ranks of a stage.
class GradientUser {
 public:
  virtual ~GradientUser() = default;
  // Announces a pass that completes the gradients of these units, in this order.
  virtual void expect(std::span<const int> units) = 0;
  // Reports that work enqueued on compute from now on sees the unit's gradient after the reductions over the
  // data axis. No later work of this step needs the unit's parameters.
  virtual void complete(int unit) = 0;
};

}  // namespace cleave::zero
