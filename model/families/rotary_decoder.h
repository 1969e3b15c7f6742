// What the config.json files of Llama and of the families after it have in common.
#pragma once
#include "model/config_fields.h"
#include "model/family.h"

namespace cleave::model {

// Parameters as Llama calls them; a family changes what it calls otherwise.
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

// Sizes, epsilon, dropout and the spread of initial weights; refuses what changes the model and is not built.
// positions: of a file that does not say; 0 where it must.
ModelConfig read_rotary_sizes(const Family& family, const Fields& fields, int64_t positions);
// Base and scaling of the rotation from the object `rope`, or the base from beside it, else theta.
void read_rope(const Fields& fields, const Fields& rope, double theta, ModelConfig& config);
kernels::Activation read_activation(const Fields& fields, const char* field, kernels::Activation otherwise);
// All of that, tying and the activation, as most families have them.
ModelConfig read_rotary_decoder(const Family& family, const Fields& fields, int64_t positions);
// What is read back as the same; a family may add fields.
nlohmann::json rotary_decoder_json(const ModelConfig& config);
inline std::string rotary_decoder_text(const ModelConfig& config) {
  return text_of(rotary_decoder_json(config));
}

}  // namespace cleave::model
