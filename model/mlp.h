// A multi-layer perceptron classifier.
#pragma once
#include "kernels/activation.h"
#include "model/axes.h"
#include "model/layer.h"

namespace cleave::model {

struct MlpConfig {
  std::vector<int64_t> sizes;  // input, hidden..., classes
  kernels::Activation activation = kernels::Activation::relu;
};

// Samples are feature rows: input [1, sizes.front()] in the model's type, target [1] int32 class. Over a
// tensor axis the hidden layers are cut by outputs and inputs in turn, the last by its inputs, and the
// classes; Error(usage) names the sizes that would work. Samples are not sequences: the sequence axis has one
// rank.
Model make_mlp(const MlpConfig& config, DType dtype, std::string name = "mlp", const Axes& axes = {});

}  // namespace cleave::model
