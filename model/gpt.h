// GPT-2 (Radford et al. 2019): learned positions, layer norm before attention and MLP, tied head.
#pragma once
#include "kernels/activation.h"
#include "model/axes.h"
#include "model/layer.h"

namespace cleave {

struct GptConfig {
  int64_t vocab = 50257, positions = 1024, width = 768, layers = 12, heads = 12;
  float dropout = 0;  // on the embedding and on both residual branches
  float norm_eps = 1e-5f;
  Activation activation = Activation::gelu_tanh;
  bool operator==(const GptConfig&) const = default;
};

// Samples are token windows: input [seq] int32, targets [seq] int32. seq may be at most config.positions.
// Heads, the MLP and the vocabulary are cut over the tensor axis, positions over the sequence axis.
// Error(usage) for sizes that do not fit together, and for what an axis does not divide.
Model make_gpt(const GptConfig& config, DType dtype, int64_t seq, std::string name = "gpt",
               const Axes& axes = {});

}  // namespace cleave
