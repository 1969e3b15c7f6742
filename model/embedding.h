// The first layer of a transformer.
#pragma once
#include "model/axes.h"
#include "model/layer.h"
#include "model/transformer.h"

namespace cleave::model {

// The embedding of tokens, and of their positions where these are learned. What is looked up is multiplied
// with the scale, rounded to the model's type as in transformers.
std::unique_ptr<Layer> make_embedding(const ModelConfig& config, float scale, int64_t seq, DType dtype,
                                      const Axes& axes);

}  // namespace cleave::model
