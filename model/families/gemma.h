// Common parts of Gemma 2 and the text models of Gemma 3.
#pragma once
#include "model/families/rotary_decoder.h"

namespace cleave::model {

// Llama's parameter names, with norms after both halves.
inline constexpr Family::Names kGemmaNames = [] {
  Family::Names names = kRotaryDecoderNames;
  names.attention_after = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm", names.mlp_after = "post_feedforward_layernorm";
  return names;
}();

// Reads everything but the rotation. Without an explicit list, every `pattern`-th layer sees all positions.
ModelConfig read_gemma(const Family& family, const Fields& fields, int64_t positions, int64_t pattern);
// Returns the fields of config.json, with the rotation if it is the same in every layer.
nlohmann::json gemma_json(const ModelConfig& config);

}  // namespace cleave::model
