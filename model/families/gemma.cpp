#include "model/families/gemma.h"

#include "model/recipe.h"

namespace cleave::model {
namespace {

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

std::vector<LayerKind> read_layer_kinds(const Fields& f, int64_t layers, int64_t pattern) {
  std::vector<LayerKind> kinds;
  if (!f.has("layer_types")) {
    for (int64_t l = 0; l < layers; ++l)
      kinds.push_back((l + 1) % pattern == 0 ? LayerKind::full : LayerKind::sliding);
    return kinds;
  }
  for (const std::string& word : f.words("layer_types")) {
    if (word != kSliding && word != kFull)
      f.refuse("layer_types",
               fmt::format("'{}' is not supported; supported are {} and {}", word, kSliding, kFull));
    kinds.push_back(word == kFull ? LayerKind::full : LayerKind::sliding);
  }
  if (int64_t(kinds.size()) != layers)
    f.refuse("layer_types", fmt::format("{} kinds are given for {} layers", kinds.size(), layers));
  return kinds;
}

nlohmann::json cap_json(float cap) { return cap > 0 ? nlohmann::json(decimal(cap)) : nlohmann::json(); }

}  // namespace

ModelConfig read_gemma(const Family& family, const Fields& f, int64_t positions, int64_t pattern) {
  ModelConfig c = read_rotary_sizes(family, f, positions);
  if (!f.has("num_key_value_heads")) c.kv_heads = 4;
  if (!f.has("head_dim")) c.head_dim = 256;
  c.tied = f.flag("tie_word_embeddings", true);
  c.activation = read_activation(f, "hidden_activation", kernels::Activation::gelu_tanh);
  c.qkv_bias = c.output_bias = f.flag("attention_bias", false);
  c.query_scalar = f.number("query_pre_attn_scalar", 256);
  if (c.query_scalar <= 0) f.refuse("query_pre_attn_scalar", "must be above 0");
  c.window = f.count("sliding_window", kMostIds, f.says("sliding_window") ? 0 : 4096);
  c.layer_kinds = read_layer_kinds(f, c.layers, pattern);
  f.only("use_bidirectional_attention", false, false);
  return c;
}

nlohmann::json gemma_json(const ModelConfig& c) {
  CHECK(c.qkv_bias == c.output_bias,
        "a config.json cannot express biases in some attention projections only");
  nlohmann::json j = rotary_decoder_json(c);
  j["hidden_activation"] = name_of(c.activation.value_or(c.family->activation));
  j.erase("hidden_act");
  j["attention_bias"] = c.qkv_bias;
  const auto whole = int64_t(c.query_scalar);
  j["query_pre_attn_scalar"] =
      double(whole) == c.query_scalar ? nlohmann::json(whole) : nlohmann::json(c.query_scalar);
  j["sliding_window"] = c.window > 0 ? nlohmann::json(c.window) : nlohmann::json();
  j["layer_types"] = nlohmann::json::array();
  for (const LayerKind kind : c.layer_kinds)
    j["layer_types"].push_back(kind == LayerKind::full ? kFull : kSliding);
  j["attn_logit_softcapping"] = cap_json(c.attention_cap);
  j["final_logit_softcapping"] = cap_json(c.logit_cap);
  return j;
}

}  // namespace cleave::model
