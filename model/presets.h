// Models by name: the presets, and Hugging Face's config.json.
#pragma once
#include <string>

#include "model/transformer.h"

namespace cleave::model {

// A preset's name (also as preset:NAME), or the path of a config.json or of the folder that holds one. A
// vocabulary of 0 stands for whatever the data has. Error(usage) lists the presets when it is neither, and
// says how each is written when it is both.
ModelConfig find_model(const std::string& name);

// Refuses a name that is a preset's and a file's, as find_model() does; for commands that want a folder.
void require_one_meaning(const std::string& name);

// Whether it is NAME or preset:NAME of a preset.
bool is_preset(const std::string& name);

// "tiny, gpt2, ...", for messages and help.
std::string preset_names();

// Error(usage) when the device has no kernel for the model.
void check_kernels(const ModelConfig& config, Device device);

}  // namespace cleave::model
