// Interface of the drivers of a ParameterStore that the step uses, independent of who computes and of
// the order.
#pragma once
#include "zero/gradient_user.h"

namespace cleave::zero {

class Visits {
 public:
  virtual ~Visits() = default;
  // Set-up after all units were added to the store: allocates memory.
  virtual void commit() = 0;
  // A training step is begin_step, passes and end_step; after it, work enqueued on compute sees the reduced
  // gradients. unscale: factor of a contribution before exact sums round it. `user` is notified of gradients
  // until end_step; may be null.
  virtual void begin_step(double unscale = 1, GradientUser* user = nullptr) = 0;
  virtual void end_step() = 0;
};

}  // namespace cleave::zero
