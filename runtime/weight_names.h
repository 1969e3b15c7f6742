// Hugging Face names and layouts of a model's parameters in files.
#pragma once
#include "checkpoint/weight_reader.h"
#include "model/transformer.h"

namespace cleave::runtime {

// Returns the names as stored in the files: with or without the base model's prefix.
checkpoint::WeightNames weight_names(const model::ModelConfig& config, const checkpoint::WeightFiles& files);
checkpoint::WeightNames weight_names(const model::ModelConfig& config,
                                     const std::vector<std::string>& in_files);
// Returns the names that transformers writes.
checkpoint::WeightNames weight_names(const model::ModelConfig& config);

}  // namespace cleave::runtime
