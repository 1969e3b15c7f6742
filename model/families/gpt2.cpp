// GPT-2 (Radford et al. 2019): learned positions, layer norm before attention and MLP, biases, tied head.
#include "model/config_fields.h"
#include "model/family.h"
#include "model/recipe.h"

namespace cleave::model {
namespace {

kernels::Activation activation_of(const Fields& f) {
  const std::string name = f.word("activation_function", "gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return kernels::Activation::gelu_tanh;
  if (name == "gelu") return kernels::Activation::gelu_erf;
  if (name == "silu" || name == "swish") return kernels::Activation::silu;
  if (name != "relu")
    f.refuse("activation_function", name + " is not supported; supported are gelu_new, gelu, relu and silu");
  return kernels::Activation::relu;
}

ModelConfig read_gpt2(const Fields& f) {
  ModelConfig c;
  c.vocab = f.count("vocab_size", kMostIds), c.positions = f.count("n_positions", kMostIds);
  c.width = f.count("n_embd", kWidest), c.layers = f.count("n_layer", kMostLayers);
  c.heads = f.count("n_head", kWidest);
  c.norm_eps = float(f.number("layer_norm_epsilon", 1e-5));
  c.activation = activation_of(f);
  c.dropout = float(f.probability("resid_pdrop", 0.1));
  if (f.number("embd_pdrop", 0.1) != f.number("resid_pdrop", 0.1))
    f.refuse("embd_pdrop", "a value other than resid_pdrop is not supported");
  c.attention_dropout = float(f.probability("attn_pdrop", 0.1));
  f.only("n_inner", 4 * c.width, 4 * c.width);
  f.only("tie_word_embeddings", true, true);
  f.only("scale_attn_weights", true, true);
  f.only("scale_attn_by_inverse_layer_idx", false, false);
  f.only("add_cross_attention", false, false);
  return model_config(kGpt2, c);
}

std::string write_gpt2(const ModelConfig& c) {
  const kernels::Activation f = c.activation.value_or(kGpt2.activation);
  return text_of({{"model_type", "gpt2"},
                  {"vocab_size", c.vocab},
                  {"n_positions", c.positions},
                  {"n_embd", c.width},
                  {"n_layer", c.layers},
                  {"n_head", c.heads},
                  {"layer_norm_epsilon", decimal(c.norm_eps)},
                  {"activation_function", f == kernels::Activation::gelu_tanh ? "gelu_new" : name_of(f)},
                  {"resid_pdrop", decimal(c.dropout)},
                  {"embd_pdrop", decimal(c.dropout)},
                  {"attn_pdrop", decimal(c.attention_dropout)}});
}

}  // namespace

constinit const Family kGpt2{.type = "gpt2",
                             .names = {.embedding = "wte",
                                       .positions = "wpe",
                                       .block = "h",
                                       .attention_norm = "ln_1",
                                       .qkv = {"attn.c_attn"},
                                       .out = "attn.c_proj",
                                       .mlp_norm = "ln_2",
                                       .up = {"mlp.c_fc"},
                                       .down = "mlp.c_proj",
                                       .final_norm = "ln_f"},
                             .base = "transformer",
                             .architecture = "GPT2LMHeadModel",
                             .input_first = true,
                             .norm = Norm::Kind::layer,
                             .norm_eps = 1e-5f,
                             .gated = false,
                             .activation = kernels::Activation::gelu_tanh,
                             .qkv_bias = true,
                             .output_bias = true,
                             .mlp_bias = true,
                             .tied = true,
                             .small_outputs = true,
                             .read = read_gpt2,
                             .write = write_gpt2};

}  // namespace cleave::model
