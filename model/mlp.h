// Multi-layer perceptron classifier.
#pragma once
#include "kernels/activation.h"
#include "model/axes.h"
#include "model/layer.h"

namespace cleave::model {

struct MlpConfig {
  std::vector<int64_t> sizes;  // input, hidden..., classes
  kernels::Activation activation = kernels::Activation::relu;
};

// Makes an MLP for samples of feature rows: input [1, sizes.front()] in the model's type, target [1] int32
// class. A tensor axis cuts hidden layers alternately by outputs and inputs, the last by its inputs, and the
// classes; Error(usage) names valid sizes. Samples are not sequences, so the sequence axis must have one
// rank.
Model make_mlp(const MlpConfig& config, DType dtype, std::string name = "mlp", const Axes& axes = {});

}  // namespace cleave::model
