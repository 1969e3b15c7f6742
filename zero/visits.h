// A driver of a ParameterStore as an engine's step knows it: what happens to every unit, whoever computes
// with them and in whatever order.
#pragma once
#include "zero/gradient_user.h"

namespace cleave::zero {

class Visits {
 public:
  virtual ~Visits() = default;
  // Set-up, after every unit was added to the store: allocates.
  virtual void commit() = 0;
  // A training step is begin_step, passes, end_step, after which work enqueued on compute sees the reduced
  // gradients. unscale: what exact sums multiply a contribution by before it is rounded. user: is told of
  // gradients until end_step; null: nobody is.
  virtual void begin_step(double unscale = 1, GradientUser* user = nullptr) = 0;
  virtual void end_step() = 0;
};

}  // namespace cleave::zero
