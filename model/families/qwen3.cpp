// Qwen3 (arXiv 2505.09388): Llama with a norm of each query and key head before the rotation.
#include "model/families/rotary_decoder.h"

namespace cleave::model {
namespace {

ModelConfig read_qwen3(const Fields& f) {
  ModelConfig c = read_rotary_decoder(kQwen3, f, 32768);
  if (!f.has("head_dim")) c.head_dim = 128;
  c.qkv_bias = c.output_bias = f.flag("attention_bias", false);
  f.only("use_sliding_window", false, false);
  f.only_words("layer_types", "full_attention");
  return c;
}

std::string write_qwen3(const ModelConfig& c) {
  nlohmann::json j = rotary_decoder_json(c);
  j["attention_bias"] = c.qkv_bias;
  return text_of(j);
}

constexpr Family::Names kQwen3Names = [] {
  Family::Names names = kRotaryDecoderNames;
  names.query_norm = "self_attn.q_norm", names.key_norm = "self_attn.k_norm";
  return names;
}();

}  // namespace

constinit const Family kQwen3{.type = "qwen3",
                              .names = kQwen3Names,
                              .architecture = "Qwen3ForCausalLM",
                              .read = read_qwen3,
                              .write = write_qwen3};

}  // namespace cleave::model
