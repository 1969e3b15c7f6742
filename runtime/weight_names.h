// What Hugging Face calls a model's parameters in files, and how they lie there.
#pragma once
#include "checkpoint/weight_reader.h"
#include "model/transformer.h"

namespace cleave::runtime {

// The names as the files have them: with or without the name of the base model before them.
checkpoint::WeightNames weight_names(const model::ModelConfig& config, const checkpoint::WeightFiles& files);
checkpoint::WeightNames weight_names(const model::ModelConfig& config,
                                     const std::vector<std::string>& in_files);
// The names as transformers writes them.
checkpoint::WeightNames weight_names(const model::ModelConfig& config);

}  // namespace cleave::runtime
