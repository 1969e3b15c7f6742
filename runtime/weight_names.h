// What Hugging Face calls a model's parameters in files, and how they lie there.
#pragma once
#include "checkpoint/weight_reader.h"
#include "model/transformer.h"

namespace cleave {

// As the files have them: with or without the name of the base model before them.
WeightNames weight_names(const ModelConfig& config, const WeightFiles& files);
// As transformers writes them.
WeightNames weight_names(const ModelConfig& config);

}  // namespace cleave
