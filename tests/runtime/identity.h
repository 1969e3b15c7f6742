// Base of test layers that pass rows and gradients on unchanged.
#pragma once
#include <vector>

#include "kernels/elementwise.h"
#include "model/layer.h"

namespace cleave::testing {

class Identity : public model::Layer {
 public:
  std::vector<UnitSpec> units() const override { return {}; }
  model::TensorSpec output(const model::TensorSpec& in) const override { return in; }
  void forward(const model::ForwardArgs& a) const override {
    kernels::launch(kernels::Cast{.y = a.y, .x = a.x}, a.stream);
  }
  void backward(const model::BackwardArgs& a) const override {
    if (a.dx.defined()) kernels::launch(kernels::Cast{.y = a.dx, .x = a.dy}, a.stream);
  }
};

}  // namespace cleave::testing
