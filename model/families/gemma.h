// What Gemma 2 and the text models of Gemma 3 have in common.
#pragma once
#include "model/families/rotary_decoder.h"

namespace cleave::model {

// Parameters as Llama calls them, with norms behind both halves.
inline constexpr Family::Names kGemmaNames = [] {
  Family::Names names = kRotaryDecoderNames;
  names.attention_after = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm", names.mlp_after = "post_feedforward_layernorm";
  return names;
}();

// All but the rotation; of a file that does not say, every `pattern`-th layer sees all positions.
ModelConfig read_gemma(const Family& family, const Fields& fields, int64_t positions, int64_t pattern);
// The fields of config.json, with the rotation where it is the same in every layer.
nlohmann::json gemma_json(const ModelConfig& config);

}  // namespace cleave::model
