// Hugging Face's config.json: what a model folder says about its architecture.
#pragma once
#include <string>

#include "model/transformer.h"

namespace cleave::model {

// model_type names one of kFamilies, written as by transformers 4 and 5. Fields that do not change the model
// (token ids, types, cache settings) are ignored; a field that would change it in a way that is not built
// here is an error. Error(usage) names `origin` and every field that is missing or refused.
ModelConfig read_config_json(const std::string& text, const std::string& origin);

// The text that read_config_json turns back into the same config.
std::string to_config_json(const ModelConfig& config);

}  // namespace cleave::model
