// Reads and writes Hugging Face's config.json, the architecture of a model folder.
#pragma once
#include <string>

#include "model/transformer.h"

namespace cleave::model {

// Reads a config as written by transformers 4 and 5; model_type names one of kFamilies. Fields that do not
// change the model (token ids, types, cache settings) are ignored; unsupported fields that change it are
// errors. Throws Error(usage) with `origin` and all missing or rejected fields.
ModelConfig read_config_json(const std::string& text, const std::string& origin);

// Returns a text that read_config_json converts back to the same config.
std::string to_config_json(const ModelConfig& config);

}  // namespace cleave::model
