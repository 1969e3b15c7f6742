// Common parts of the config.json files of Llama and related families.
#pragma once
#include "model/config_fields.h"
#include "model/family.h"

namespace cleave::model {

// Llama's parameter names; families override their differences.
inline constexpr Family::Names kRotaryDecoderNames{
    .embedding = "model.embed_tokens",
    .block = "model.layers",
    .attention_norm = "input_layernorm",
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .out = "self_attn.o_proj",
    .mlp_norm = "post_attention_layernorm",
    .up = {"mlp.gate_proj", "mlp.up_proj"},
    .down = "mlp.down_proj",
    .final_norm = "model.norm"};

// Reads sizes, epsilon, dropout and the spread of initial weights; rejects unsupported settings that change
// the model. positions: default, or 0 if the file must have it.
ModelConfig read_rotary_sizes(const Family& family, const Fields& fields, int64_t positions);
// Reads base and scaling of the rotation from the object `rope`, or the base from the top level; default:
// theta.
void read_rope(const Fields& fields, const Fields& rope, double theta, ModelConfig& config);
kernels::Activation read_activation(const Fields& fields, const char* field, kernels::Activation otherwise);
// Reads all of the above, tying and the activation, as most families need.
ModelConfig read_rotary_decoder(const Family& family, const Fields& fields, int64_t positions);
// Returns fields that read back equal; a family may add others.
nlohmann::json rotary_decoder_json(const ModelConfig& config);
inline std::string rotary_decoder_text(const ModelConfig& config) {
  return text_of(rotary_decoder_json(config));
}

}  // namespace cleave::model
