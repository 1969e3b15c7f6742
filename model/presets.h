// Models by name: the presets, and Hugging Face's config.json.
#pragma once
#include <string>
#include <variant>

#include "model/gpt.h"
#include "model/llama.h"

namespace cleave {

using ModelConfig = std::variant<GptConfig, LlamaConfig>;

// A preset's name, or the path of a config.json or of the folder that holds one. A vocabulary of 0 stands for
// whatever the data has. Error(usage) lists the presets when it is neither.
ModelConfig find_model(const std::string& name);

// "tiny, gpt2, ...", for messages and help.
std::string preset_names();

inline int64_t& vocab_of(ModelConfig& config) {
  return std::visit([](auto& c) -> int64_t& { return c.vocab; }, config);
}

inline int64_t width_of(const ModelConfig& config) {
  return std::visit([](const auto& c) { return c.width; }, config);
}

// Error(usage) when the device has no kernel for the model.
void check_kernels(const ModelConfig& config, Device device);

// The part of the model that a rank of the axes computes; Error(usage) when it cannot be cut so.
Model make_model(const ModelConfig& config, DType dtype, int64_t seq, std::string name,
                 const Axes& axes = {});

}  // namespace cleave
