// A multi-layer perceptron classifier.
#pragma once
#include "kernels/activation.h"
#include "model/layer.h"

namespace cleave {

struct MlpConfig {
  std::vector<int64_t> sizes;  // input, hidden..., classes
  Activation activation = Activation::relu;
};

// Samples are feature rows: input [1, sizes.front()] in the model's type, target [1] int32 class.
Model make_mlp(const MlpConfig& config, DType dtype, std::string name = "mlp");

}  // namespace cleave
