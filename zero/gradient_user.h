// Who uses the gradients that a ParameterStore reduces.
#pragma once
#include <span>

namespace cleave::zero {

// Both calls come on the host, in the same order on all ranks of a stage.
class GradientUser {
 public:
  virtual ~GradientUser() = default;
  // A pass begins that completes the gradients of these units, in this order.
  virtual void expect(std::span<const int> units) = 0;
  // Work enqueued on compute from now on sees the unit's gradient as the reductions over the data axis leave
  // it, and no work of this step needs its parameters any more.
  virtual void complete(int unit) = 0;
};

}  // namespace cleave::zero
