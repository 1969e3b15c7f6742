// First layer of a transformer.
#pragma once
#include "model/axes.h"
#include "model/layer.h"
#include "model/transformer.h"

namespace cleave::model {

// Makes the embedding of tokens, and of positions for families that learn them. The result is multiplied by
// the scale, rounded to the model's type as in transformers.
std::unique_ptr<Layer> make_embedding(const ModelConfig& config, float scale, int64_t seq, DType dtype,
                                      const Axes& axes);

}  // namespace cleave::model
