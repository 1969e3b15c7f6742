// Tests a layer of one's own: its backward against finite differences of its forward.
#pragma once
#include "model/layer.h"

namespace cleave::model {

struct GradientCheck {
  uint64_t seed = 1;                       // of parameters, input and the output's gradient
  int64_t tokens = 0;                      // values of an int32 input are below this
  std::span<const Tensor> constants = {};  // as the model has them
  int64_t elements = 24;                   // of each tensor that are compared, spread over it
  float step = 1.0f / 256;                 // to either side
  double tolerance = 2e-3;                 // of 1 + |what it should be|: rounding of fp32 and curvature
};

// Runs the layer alone in fp32 on the CPU with an input of this shape, an fp32 or an int32 one, and random
// parameters of a standard deviation of 0.4, norms' around 1. Error(internal) with the first of these that
// does not hold:
// - the gradients of the input and of each parameter that is not frozen are (f(x + step) - f(x - step)) / (2
// step) of
//   f = sum(y * dy) + the layer's side loss within the tolerance, its state being as it begins;
// - asked again for the same, backward adds to what was there (ParamGradient::accumulate);
// - where the layer splits its backward, both parts together give the same.
void check_gradients(const Layer& layer, const TensorSpec& input, const GradientCheck& how = {});

}  // namespace cleave::model
