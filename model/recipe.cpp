#include "model/recipe.h"

#include <fmt/ranges.h>

#include <cmath>

#include "model/family.h"

namespace cleave::model {
namespace {

AttentionRecipe attention_of(const ModelConfig& c, LayerKind kind) {
  const Family& f = *c.family;
  AttentionRecipe a{.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
  a.window = kind == LayerKind::sliding ? c.window : 0;
  a.scale = c.query_scalar > 0 ? float(1 / std::sqrt(c.query_scalar)) : 0;
  a.cap = c.attention_cap, a.dropout = c.attention_dropout;
  if (!f.names.positions) a.rotation = c.local_rope_theta > 0 && kind == LayerKind::sliding ? 1 : 0;
  a.head_norms = f.names.query_norm != nullptr;
  a.qkv_bias = c.qkv_bias, a.output_bias = c.output_bias;
  return a;
}

std::string text_of(const Rotation& r) {
  switch (r.scaling.kind) {
    case RopeScaling::Kind::linear:
      return fmt::format("rotary {:g} / {:g}", r.theta, r.scaling.factor);
    case RopeScaling::Kind::llama3:
      return fmt::format("rotary {:g}, llama3 {:g}", r.theta, r.scaling.factor);
    case RopeScaling::Kind::none:
      break;
  }
  return fmt::format("rotary {:g}", r.theta);
}

std::string text_of(const AttentionRecipe& a, const Recipe& recipe) {
  std::string text = fmt::format("{} heads of {}", a.heads, a.head_dim);
  if (a.kv_heads != a.heads) text += fmt::format(" ({} of keys)", a.kv_heads);
  if (a.window > 0) text += fmt::format(", window {}", a.window);
  if (a.scale != 0) text += fmt::format(", scale {:g}", a.scale);
  if (a.cap != 0) text += fmt::format(", cap {:g}", a.cap);
  if (a.rotation >= 0) text += ", " + text_of(recipe.rotations[size_t(a.rotation)]);
  if (a.head_norms) text += ", heads normalized";
  if (a.qkv_bias || a.output_bias) text += a.output_bias ? ", biases" : ", biases before it";
  if (a.dropout > 0) text += fmt::format(", dropout {:g}", a.dropout);
  return text;
}

std::string text_of(const BlockRecipe& b) {
  const char* where = b.norm_before ? b.norm_after ? "before and after" : "before" : "after";
  return fmt::format("{} norms{} {}", b.norm.kind == Norm::Kind::layer ? "layer" : "rms",
                     b.norm.offset != 0 ? fmt::format(" ({:g} + w)", b.norm.offset) : "", where);
}

}  // namespace

Recipe recipe_of(const ModelConfig& c) {
  const Family& f = *c.family;
  Recipe r;
  if (f.scaled_embedding) r.embedding_scale = std::sqrt(float(c.width));
  if (!f.names.positions) r.rotations.push_back({c.head_dim, c.rope_theta, c.rope});
  if (!f.names.positions && c.local_rope_theta > 0)
    r.rotations.push_back({c.head_dim, c.local_rope_theta, {}});
  r.final_norm = {f.norm, c.norm_eps, f.norm_offset};
  r.logit_cap = c.logit_cap;
  for (int64_t l = 0; l < c.layers; ++l) {
    BlockRecipe b{.norm = r.final_norm, .norm_before = f.names.attention_norm != nullptr};
    b.norm_after = f.names.attention_after != nullptr;
    b.attention = attention_of(c, c.layer_kinds.empty() ? LayerKind::sliding : c.layer_kinds[size_t(l)]);
    b.mlp = {c.mlp_width, c.activation.value_or(f.activation), f.gated, f.mlp_bias};
    b.dropout = c.dropout;
    r.blocks.push_back(b);
  }
  return r;
}

std::string text_of(const BlockRecipe& b, const Recipe& recipe) {
  return fmt::format("{}; MLP {}{} {}{}; {}{}", text_of(b.attention, recipe), b.mlp.width,
                     b.mlp.gated ? " gated" : "", name_of(b.mlp.activation), b.mlp.bias ? ", biases" : "",
                     text_of(b), b.dropout > 0 ? fmt::format("; dropout {:g}", b.dropout) : "");
}

std::vector<std::string> lines_of(const Recipe& recipe) {
  std::vector<std::pair<const BlockRecipe*, std::vector<size_t>>> kinds;
  for (size_t l = 0; l < recipe.blocks.size(); ++l) {
    const BlockRecipe& b = recipe.blocks[l];
    const auto at = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return *k.first == b; });
    if (at == kinds.end())
      kinds.push_back({&b, {l}});
    else
      at->second.push_back(l);
  }
  std::vector<std::string> lines;
  for (const auto& [block, layers] : kinds) {
    const std::string where =
        kinds.size() == 1 ? "every layer" : fmt::format("layers {}", fmt::join(layers, ", "));
    lines.push_back(fmt::format("{}: {}", where, text_of(*block, recipe)));
  }
  if (recipe.embedding_scale != 1)
    lines.push_back(fmt::format("embedding times {:g}", recipe.embedding_scale));
  if (recipe.logit_cap != 0) lines.push_back(fmt::format("logits capped at {:g}", recipe.logit_cap));
  return lines;
}

const char* name_of(kernels::Activation activation) {
  switch (activation) {
    case kernels::Activation::gelu_tanh:
      return "gelu_pytorch_tanh";
    case kernels::Activation::gelu_erf:
      return "gelu";
    case kernels::Activation::relu:
      return "relu";
    case kernels::Activation::silu:
      break;
  }
  return "silu";
}

}  // namespace cleave::model
