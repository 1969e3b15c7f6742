#include "model/families/rotary_decoder.h"

#include "model/recipe.h"

namespace cleave::model {

void read_rope(const Fields& f, const Fields& rope, double theta, ModelConfig& c) {
  c.rope_theta = rope.number("rope_theta", f.number("rope_theta", theta));
  if (c.rope_theta <= 1) f.refuse("rope_theta", "must be above 1");
  f.only("partial_rotary_factor", 1.0, 1.0);
  rope.only("partial_rotary_factor", 1.0, 1.0);
  const std::string type = rope.word("rope_type", rope.word("type", "default").c_str());
  if (type == "default") return;
  c.rope.kind = type == "llama3" ? RopeScaling::Kind::llama3 : RopeScaling::Kind::linear;
  if (type != "llama3" && type != "linear")
    return rope.refuse("rope_type", type + " is not supported; supported are default, linear and llama3");
  c.rope.factor = rope.number("factor");
  if (c.rope.factor < 1) rope.refuse("factor", "must be at least 1");
  if (type == "linear") return;
  c.rope.low_freq_factor = rope.number("low_freq_factor");
  c.rope.high_freq_factor = rope.number("high_freq_factor");
  c.rope.original_positions = rope.count("original_max_position_embeddings", kMostIds);
  if (c.rope.high_freq_factor <= c.rope.low_freq_factor)
    rope.refuse("high_freq_factor", "must be above low_freq_factor");
}

namespace {

nlohmann::json json_of(const RopeScaling& r) {
  if (r.kind == RopeScaling::Kind::none) return nullptr;
  if (r.kind == RopeScaling::Kind::linear) return {{"rope_type", "linear"}, {"factor", r.factor}};
  return {{"rope_type", "llama3"},
          {"factor", r.factor},
          {"low_freq_factor", r.low_freq_factor},
          {"high_freq_factor", r.high_freq_factor},
          {"original_max_position_embeddings", r.original_positions}};
}

}  // namespace

kernels::Activation read_activation(const Fields& f, const char* field, kernels::Activation otherwise) {
  const std::string name = f.word(field, name_of(otherwise));
  if (name == "swish") return kernels::Activation::silu;
  if (name == "gelu_new") return kernels::Activation::gelu_tanh;
  for (const kernels::Activation a : {kernels::Activation::silu, kernels::Activation::gelu_tanh,
                                      kernels::Activation::gelu_erf, kernels::Activation::relu})
    if (name == name_of(a)) return a;
  f.refuse(field, name + " is not supported; supported are silu, gelu, gelu_pytorch_tanh and relu");
  return otherwise;
}

ModelConfig read_rotary_sizes(const Family& family, const Fields& f, int64_t positions) {
  ModelConfig c;
  c.vocab = f.count("vocab_size", kMostIds), c.width = f.count("hidden_size", kWidest);
  c.layers = f.count("num_hidden_layers", kMostLayers);
  c.mlp_width = f.count("intermediate_size", 16 * kWidest);
  c.positions = f.count("max_position_embeddings", kMostIds, positions);
  c.heads = f.count("num_attention_heads", kWidest);
  c.kv_heads = f.count("num_key_value_heads", kWidest, c.heads);
  if (!f.has("head_dim") && c.heads > 0 && c.width % c.heads != 0)
    f.refuse("hidden_size", fmt::format("{} does not divide by {} heads", c.width, c.heads));
  c.head_dim = f.count("head_dim", kWidest, c.heads > 0 ? c.width / c.heads : 0);
  c.norm_eps = float(f.number("rms_norm_eps", double(decimal(family.norm_eps))));
  c.init_scale = float(f.number("initializer_range", 0.02));
  c.attention_dropout = float(f.probability("attention_dropout", 0));
  f.only("mlp_bias", false, false);
  f.only("pretraining_tp", 1, 1);
  return model_config(family, c);
}

// transformers 5 writes rope_parameters with the base inside; transformers 4 writes rope_scaling, and the
// base at the top level.
ModelConfig read_rotary_decoder(const Family& family, const Fields& f, int64_t positions) {
  ModelConfig c = read_rotary_sizes(family, f, positions);
  c.tied = f.flag("tie_word_embeddings", false);
  read_rope(f, f.inner(f.has("rope_parameters") ? "rope_parameters" : "rope_scaling"), 10000, c);
  c.activation = read_activation(f, "hidden_act", kernels::Activation::silu);
  f.absent("attn_logit_softcapping", "a soft cap of attention's scores");
  f.absent("final_logit_softcapping", "a soft cap of the logits");
  return c;
}

nlohmann::json rotary_decoder_json(const ModelConfig& c) {
  nlohmann::json j{{"model_type", c.family->type},
                   {"vocab_size", c.vocab},
                   {"hidden_size", c.width},
                   {"intermediate_size", c.mlp_width},
                   {"num_hidden_layers", c.layers},
                   {"num_attention_heads", c.heads},
                   {"num_key_value_heads", c.kv_heads},
                   {"head_dim", c.head_dim},
                   {"max_position_embeddings", c.positions},
                   {"rms_norm_eps", decimal(c.norm_eps)},
                   {"rope_theta", c.rope_theta},
                   {"rope_scaling", json_of(c.rope)},
                   {"tie_word_embeddings", c.tied},
                   {"hidden_act", name_of(c.activation.value_or(c.family->activation))},
                   {"initializer_range", decimal(c.init_scale)}};
  if (c.attention_dropout > 0) j["attention_dropout"] = decimal(c.attention_dropout);
  return j;
}

}  // namespace cleave::model
