// Models by name: presets, and Hugging Face's config.json.
#pragma once
#include <string>

#include "model/transformer.h"

namespace cleave::model {

// Finds a model by preset name (also preset:NAME), or by the path of a config.json or its folder. A
// vocabulary of 0 means that of the data. Throws Error(usage) with the list of presets if nothing matches,
// and with both spellings if the name is ambiguous.
ModelConfig find_model(const std::string& name);

// Rejects a name that is both a preset and a file, as find_model() does; for commands that need a folder.
void require_one_meaning(const std::string& name);

// Returns true for NAME or preset:NAME of a preset.
bool is_preset(const std::string& name);

// Returns "tiny, gpt2, ...", for messages and help.
std::string preset_names();

// Throws Error(usage) if the device has no kernel for the model.
void check_kernels(const ModelConfig& config, Device device);

}  // namespace cleave::model
