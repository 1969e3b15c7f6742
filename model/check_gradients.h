// Tests a custom layer: its backward against finite differences of its forward.
#pragma once
#include "model/layer.h"

namespace cleave::model {

struct GradientCheck {
  uint64_t seed = 1;                       // for parameters, input and the output's gradient
  int64_t tokens = 0;                      // exclusive upper bound of an int32 input
  std::span<const Tensor> constants = {};  // constants of the model
  int64_t elements = 24;                   // number of compared elements per tensor, spread over it
  float step = 1.0f / 256;                 // in each direction
  double tolerance = 2e-3;                 // relative to 1 + |expected|: covers fp32 rounding and curvature
};

// Runs the layer alone in fp32 on the CPU with an fp32 or int32 input of this shape and random parameters
// (standard deviation 0.4, norms around 1). Throws Error(internal) for the first property that fails:
// - Gradients of the input and of each trained parameter equal (f(x + step) - f(x - step)) / (2 step) within
//   the tolerance, for f = sum(y * dy) + the layer's side loss, with the initial layer state.
// - A second backward adds to the existing gradients (ParamGradient::accumulate).
// - If the layer splits its backward, both parts together give the same gradients.
void check_gradients(const Layer& layer, const TensorSpec& input, const GradientCheck& how = {});

}  // namespace cleave::model
