#include "model/transformer.h"

#include <cmath>

#include "model/attention_half.h"
#include "model/block.h"
#include "model/classifier_head.h"
#include "model/embedding.h"
#include "model/family.h"
#include "model/mlp_half.h"
#include "model/recipe.h"

namespace cleave::model {
namespace {

Norm norm_of(const NormRecipe& recipe, const std::string& name, int64_t width) {
  return Norm(recipe.kind, name, width, recipe.eps, recipe.offset);
}

class FinalNorm final : public Layer {
 public:
  FinalNorm(const ModelConfig& c, const NormRecipe& recipe)
      : norm_(norm_of(recipe, c.family->names.final_norm, c.width)) {
    declared_ = {{c.family->names.final_norm}};
    norm_.declare(declared_.front());
    units_ = settle(declared_);
  }
  std::vector<UnitSpec> units() const override { return units_; }
  void freeze(const config::FreezeRule& rule) override { units_ = settle(declared_, rule); }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  void forward(const ForwardArgs& a) const override {
    const Norm::Kept kept = norm_.keep(a.keep, a.x.dim(0));
    norm_.forward(a.y, {.x = a.x}, kept, a.params, a.stream);
    a.saved.put(this, kept);
  }
  void backward(const BackwardArgs& a) const override {
    norm_.backward({.dx = a.dx, .dy = a.dy, .x = a.x}, a.saved.get<Norm::Kept>(this), a.params,
                   norm_.gradients(a), a.stream);
  }

 private:
  Norm norm_;
  std::vector<DeclaredUnit> declared_;
  std::vector<UnitSpec> units_;
};

void check_sizes(const ModelConfig& c, int64_t seq) {
  require(c.vocab > 0 && c.width > 0 && c.layers > 0 && c.mlp_width > 0, Exit::usage,
          "model: vocabulary, width, layers and MLP width must be above 0 (got {}, {}, {} and {})", c.vocab,
          c.width, c.layers, c.mlp_width);
  require(c.head_dim > 0, Exit::usage, "model: width {} is not divisible by {} heads", c.width, c.heads);
  require(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, Exit::usage,
          "{} heads do not divide into groups over {} key/value heads", c.heads, c.kv_heads);
  require(c.family->names.positions || c.head_dim % 2 == 0, Exit::usage,
          "model: head_dim must be even for rotary positions (got {})", c.head_dim);
  require(c.layer_kinds.empty() || int64_t(c.layer_kinds.size()) == c.layers, Exit::usage,
          "model: wrong number of layer kinds (got {}, expected {})", c.layer_kinds.size(), c.layers);
  require(0 < seq && seq <= c.positions, Exit::usage, "--seq_len {} is outside 1..{}, the model's positions",
          seq, c.positions);
}

Init init_of(const ModelConfig& c) { return {Init::Kind::normal, c.init_scale}; }
Init output_init_of(const ModelConfig& c) {
  const float fewer = c.family->small_outputs ? std::sqrt(2.0f * float(c.layers)) : 1.0f;
  return {Init::Kind::normal, c.init_scale / fewer};
}

template <size_t n>
std::vector<std::string> named(const std::string& block, const std::array<const char*, n>& names) {
  std::vector<std::string> out;
  for (const char* name : names)
    if (name) out.push_back(block + name);
  return out;
}

std::unique_ptr<Half> make_attention(const ModelConfig& c, const BlockRecipe& b, int64_t seq,
                                     const std::string& name, const Axes& axes) {
  const Family::Names& names = c.family->names;
  const std::string in = name + ".";
  const AttentionRecipe& r = b.attention;
  const auto head_norm = [&](const char* norm) { return r.head_norms ? in + norm : std::string(); };
  return std::make_unique<AttentionHalf>(AttentionHalf::Config{.name = name,
                                                               .width = c.width,
                                                               .seq = seq,
                                                               .heads = r.heads,
                                                               .kv_heads = r.kv_heads,
                                                               .head_dim = r.head_dim,
                                                               .window = r.window,
                                                               .scale = r.scale,
                                                               .cap = r.cap,
                                                               .dropout = r.dropout,
                                                               .qkv = named(in, names.qkv),
                                                               .out = in + names.out,
                                                               .qkv_bias = r.qkv_bias,
                                                               .out_bias = r.output_bias,
                                                               .init = init_of(c),
                                                               .out_init = output_init_of(c),
                                                               .rotary = r.rotation >= 0,
                                                               .rotation = size_t(std::max(0, r.rotation)),
                                                               .query_norm = head_norm(names.query_norm),
                                                               .key_norm = head_norm(names.key_norm),
                                                               .norm_eps = b.norm.eps,
                                                               .norm_offset = b.norm.offset},
                                         axes);
}

std::unique_ptr<Half> make_mlp_half(const ModelConfig& c, const MlpRecipe& r, const std::string& name,
                                    const Axes& axes) {
  const Family::Names& names = c.family->names;
  const std::string in = name + ".";
  return std::make_unique<MlpHalf>(MlpHalf::Config{.name = name,
                                                   .width = c.width,
                                                   .hidden = r.width,
                                                   .up = named(in, names.up),
                                                   .down = in + names.down,
                                                   .up_bias = r.bias,
                                                   .down_bias = r.bias,
                                                   .init = init_of(c),
                                                   .down_init = output_init_of(c),
                                                   .gated = r.gated,
                                                   .activation = r.activation},
                                   axes.tensor);
}

std::unique_ptr<Block> make_block(const ModelConfig& c, const BlockRecipe& b, int64_t seq, int64_t index,
                                  const Axes& axes) {
  const Family::Names& names = c.family->names;
  const std::string name = fmt::format("{}.{}", names.block, index);
  const auto norm = [&](bool there, const char* stem) {
    return there ? std::optional(norm_of(b.norm, name + "." + stem, c.width)) : std::nullopt;
  };
  Block::Branch attention{"attn", norm(b.norm_before, names.attention_norm),
                          make_attention(c, b, seq, name, axes), norm(b.norm_after, names.attention_after)};
  Block::Branch mlp{"mlp", norm(b.norm_before, names.mlp_norm), make_mlp_half(c, b.mlp, name, axes),
                    norm(b.norm_after, names.mlp_after)};
  return std::make_unique<Block>(name, std::move(attention), std::move(mlp), RowDropout{b.dropout, seq, axes},
                                 c.family->biases_last);
}

// Appends the tables, and keeps their memory alive.
void add_rotations(Model& m, const Recipe& recipe, int64_t seq) {
  std::vector<std::shared_ptr<const RopeTable>> tables;
  for (const Rotation& r : recipe.rotations) {
    tables.push_back(rope_table(seq, rope_frequencies(r.head_dim, r.theta, r.scaling)));
    for (const Tensor& t : tables.back()->tensors()) m.constants.push_back(t);
  }
  m.memory = std::make_shared<const std::vector<std::shared_ptr<const RopeTable>>>(std::move(tables));
}

}  // namespace

Model make_model(const ModelConfig& c, DType dtype, int64_t seq, std::string name, const Axes& axes) {
  CHECK(c.family, "{}: a model needs a family", name);
  check_sizes(c, seq);
  const Family::Names& names = c.family->names;
  const Recipe recipe = recipe_of(c);
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  const std::string base = std::string(c.family->base) + ".";
  if (!std::string(names.embedding).starts_with(base)) m.prefix = base;
  add_rotations(m, recipe, seq);
  m.layers.push_back(make_embedding(c, recipe.embedding_scale, seq, dtype, axes));
  for (int64_t l = 0; l < c.layers; ++l)
    m.layers.push_back(make_block(c, recipe.blocks[size_t(l)], seq, l, axes));
  m.layers.push_back(std::make_unique<FinalNorm>(c, recipe.final_norm));
  const std::string head = c.tied ? names.embedding : names.head;
  m.head = std::make_unique<ClassifierHead>(ClassifierHead::Config{.unit = head,
                                                                   .weight = head + ".weight",
                                                                   .classes = c.vocab,
                                                                   .width = c.width,
                                                                   .init_scale = c.init_scale,
                                                                   .cap = recipe.logit_cap,
                                                                   .axis = axes.tensor});
  m.rows_per_sample = axes.sequence.positions(seq).size();
  m.sample = {DType::int32, {m.rows_per_sample}};
  m.document_mask = c.document_mask;
  m.part = axes.sequence.rank(), m.parts = axes.sequence.size();
  return m;
}

}  // namespace cleave::model
