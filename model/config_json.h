// Hugging Face's config.json: what a model folder says about its architecture.
#pragma once
#include <string>

#include "model/presets.h"

namespace cleave {

// model_type gpt2, llama or qwen2, as transformers 4 and 5 write them. Fields that do not change the model
// (token ids, types, cache settings) are ignored; a field that would change it in a way that is not built
// here is an error. Error(usage) names `origin` and every field that is missing or refused.
ModelConfig read_config_json(const std::string& text, const std::string& origin);

// The text that read_config_json turns back into the same config.
std::string to_config_json(const ModelConfig& config);

}  // namespace cleave
