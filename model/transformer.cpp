#include "model/transformer.h"

#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "model/attention_half.h"
#include "model/block.h"
#include "model/classifier_head.h"
#include "model/family.h"
#include "model/mlp_half.h"

namespace cleave::model {
namespace {

// Of tokens, and of their positions where these are learned.
class Embedding final : public Layer {
 public:
  Embedding(const ModelConfig& c, int64_t seq, DType dtype, const Axes& axes)
      : name_(c.family->names.embedding),
        vocab_(c.vocab),
        width_(c.width),
        seq_(seq),
        dtype_(dtype),
        axis_(axes.tensor),
        positions_(axes.sequence.positions(seq)),
        dropout_{c.dropout, seq, axes} {
    const Init normal{Init::Kind::normal, c.init_scale};
    const char* learned = c.family->names.positions;
    tokens_ = Parameter(axis_.cut_padded({name_ + ".weight", {vocab_, width_}, normal, true}, 0));
    std::vector<DeclaredUnit> units{{name_, {&tokens_}}};
    if (learned) {
      places_ = Parameter({std::string(learned) + ".weight", {c.positions, width_}, normal, true});
      units.push_back({learned, {&places_}});
    }
    units_ = settle(units);
  }

  std::vector<UnitSpec> units() const override { return units_; }
  TensorSpec output(const TensorSpec& in) const override {
    return {dtype_, {axis_.local_rows(in.shape.numel()), width_}};
  }
  double flops(const TensorSpec&) const override { return 0; }  // rows are looked up

  void forward(const ForwardArgs& a) const override {
    const Tensor partial = axis_.all_rows_of(a.y, a.scratch), positions = positions_of(a);
    kernels::launch(
        kernels::EmbeddingForward{.y = partial,
                                  .tokens = a.x,
                                  .wte = tokens_.in(a.params),
                                  .wpe = axis_.rank() == 0 ? places_.in(a.params) : Tensor(),  // summed: once
                                  .positions = positions,
                                  .part = part(),
                                  .seq = positions_.size(),
                                  .first_position = positions_.begin},
        a.stream);
    axis_.sum(a.y, partial, a.stream, name_);
    if (a.train) dropout_.run(a.y, a.y, a.position, kDropout, a.stream);
  }
  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& a) const override {
    if (a.part == BackwardPart::input) return;  // tokens have no gradient
    dropout_.run(a.dy, a.dy, a.position, kDropout, a.stream);
    const Tensor dy = axis_.all_rows_of(a.dy, a.scratch);
    axis_.gather(dy, a.dy, a.stream, name_);
    ParamGradient& dtokens = *tokens_.in(a.grads);
    kernels::launch(kernels::EmbeddingBackward{.dwte = dtokens.tensor,
                                               .dy = dy,
                                               .tokens = a.x,
                                               .part = part(),
                                               .accumulate_wte = dtokens.accumulate()},
                    a.stream);
    if (places_) backward_places(a, *places_.in(a.grads));
  }

 private:
  static constexpr const char* kDropout = "embedding";

  // Where documents are given, the positions of this rank's tokens in them, which the backward needs again.
  struct Kept {
    Tensor positions;
  };
  Tensor positions_of(const ForwardArgs& a) const {
    if (a.past.defined() && places_) return a.past.rows.places;
    if (!places_ || !a.documents.defined()) return {};
    const int64_t samples = a.x.numel() / positions_.size();
    const Tensor positions = a.keep.take(DType::int32, {samples, positions_.size()});
    kernels::launch(kernels::DocumentPositions{.positions = positions,
                                               .documents = a.documents.view({samples, seq_}),
                                               .first = positions_.begin},
                    a.stream);
    a.saved.put(this, Kept{positions});
    return positions;
  }

  // Positions are whole on every rank: the gradient of this rank's rows.
  void backward_places(const BackwardArgs& a, ParamGradient& gradient) const {
    const int64_t rows = a.dy.dim(0), first = axis_.cuts_rows() ? axis_.rank() * rows : 0;
    Tensor dplaces = gradient.tensor;
    bool added = gradient.accumulate();
    if (a.documents.defined())  // any row of the table may be any token's
      return kernels::launch(
          kernels::EmbeddingBackward{.dwte = dplaces,
                                     .dy = a.dy,
                                     .tokens = a.saved.get<Kept>(this).positions.slice({first, first + rows}),
                                     .accumulate_wte = added},
          a.stream);
    if (positions_.size() < seq_) {
      if (!added) kernels::launch(kernels::Fill{.y = dplaces}, a.stream);
      dplaces = dplaces.rows(positions_), added = true;
    }
    kernels::launch(kernels::EmbeddingBackward{.dwpe = dplaces,
                                               .dy = a.dy,
                                               .tokens = a.x.slice({first, first + rows}),
                                               .seq = positions_.size(),
                                               .first_row = first,
                                               .accumulate_wpe = added},
                    a.stream);
  }
  kernels::VocabPart part() const { return {axis_.padded_part(vocab_).size * axis_.rank(), vocab_}; }

  std::string name_;
  int64_t vocab_, width_, seq_;
  DType dtype_;
  tensor_parallel::TensorAxis axis_;
  Range positions_;  // this rank's
  RowDropout dropout_;
  Parameter tokens_, places_;
  std::vector<UnitSpec> units_;
};

class FinalNorm final : public Layer {
 public:
  explicit FinalNorm(const ModelConfig& c)
      : norm_(c.family->norm, c.family->names.final_norm, c.width, c.norm_eps) {
    std::vector<DeclaredUnit> units{{c.family->names.final_norm}};
    norm_.declare(units.front());
    units_ = settle(units);
  }
  std::vector<UnitSpec> units() const override { return units_; }
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
  std::vector<UnitSpec> units_;
};

void check_sizes(const ModelConfig& c, int64_t seq) {
  require(c.vocab > 0 && c.width > 0 && c.layers > 0 && c.mlp_width > 0, Exit::usage,
          "a model needs a vocabulary, a width, layers and an MLP width above 0, got {}, {}, {} and {}",
          c.vocab, c.width, c.layers, c.mlp_width);
  require(c.head_dim > 0, Exit::usage, "a width of {} does not divide by {} heads", c.width, c.heads);
  require(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, Exit::usage,
          "{} heads do not divide into groups over {} key/value heads", c.heads, c.kv_heads);
  require(c.family->names.positions || c.head_dim % 2 == 0, Exit::usage,
          "a head of {} elements cannot be rotated; head_dim must be even", c.head_dim);
  require(0 < seq && seq <= c.positions, Exit::usage, "--seq_len {} is outside 1..{}, the model's positions",
          seq, c.positions);
}

template <size_t n>
std::vector<std::string> named(const std::string& block, const std::array<const char*, n>& names) {
  std::vector<std::string> out;
  for (const char* name : names)
    if (name) out.push_back(block + name);
  return out;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t seq, int64_t index, const Axes& axes) {
  const Family& f = *c.family;
  const Family::Names& names = f.names;
  const std::string name = fmt::format("{}.{}", names.block, index), in = name + ".";
  const auto optional = [&](const char* norm) { return norm ? in + norm : std::string(); };
  const float fewer = f.small_outputs ? std::sqrt(2.0f * float(c.layers)) : 1.0f;
  const Init init{Init::Kind::normal, c.init_scale}, out_init{Init::Kind::normal, c.init_scale / fewer};
  auto attention =
      std::make_unique<AttentionHalf>(AttentionHalf::Config{.name = name,
                                                            .width = c.width,
                                                            .seq = seq,
                                                            .heads = c.heads,
                                                            .kv_heads = c.kv_heads,
                                                            .head_dim = c.head_dim,
                                                            .window = c.window,
                                                            .dropout = c.attention_dropout,
                                                            .qkv = named(in, names.qkv),
                                                            .out = in + names.out,
                                                            .qkv_bias = c.qkv_bias,
                                                            .out_bias = c.output_bias,
                                                            .init = init,
                                                            .out_init = out_init,
                                                            .rotary = !names.positions,
                                                            .query_norm = optional(names.query_norm),
                                                            .key_norm = optional(names.key_norm),
                                                            .norm_eps = c.norm_eps},
                                      axes);
  auto mlp = std::make_unique<MlpHalf>(MlpHalf::Config{.name = name,
                                                       .width = c.width,
                                                       .hidden = c.mlp_width,
                                                       .up = named(in, names.up),
                                                       .down = in + names.down,
                                                       .up_bias = f.mlp_bias,
                                                       .down_bias = f.mlp_bias,
                                                       .init = init,
                                                       .down_init = out_init,
                                                       .gated = f.gated,
                                                       .activation = c.activation},
                                       axes.tensor);
  return std::make_unique<Block>(
      name,
      Block::Branch{"attn", Norm(f.norm, in + names.attention_norm, c.width, c.norm_eps),
                    std::move(attention)},
      Block::Branch{"mlp", Norm(f.norm, in + names.mlp_norm, c.width, c.norm_eps), std::move(mlp)},
      RowDropout{c.dropout, seq, axes}, f.biases_last);
}

// 6 FLOPs a weight and token in matrix products, and of attention what the mask leaves.
double flops_per_token(const ModelConfig& c, int64_t seq) {
  const double w = double(c.width), q = double(c.heads * c.head_dim), kv = double(c.kv_heads * c.head_dim);
  const double block = w * (2 * q + 2 * kv + (c.family->gated ? 3 : 2) * double(c.mlp_width));
  return 6 * (double(c.layers) * block + double(c.vocab) * w) +
         12 * double(c.layers) * q * mean_keys(seq, c.window);
}

}  // namespace

Model make_model(const ModelConfig& c, DType dtype, int64_t seq, std::string name, const Axes& axes) {
  CHECK(c.family, "{}: a model needs a family", name);
  check_sizes(c, seq);
  const Family::Names& names = c.family->names;
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  if (!names.positions) {
    const auto table = rope_table(seq, rope_frequencies(c.head_dim, c.rope_theta, c.rope));
    m.constants = table->tensors(), m.memory = table;
  }
  m.layers.push_back(std::make_unique<Embedding>(c, seq, dtype, axes));
  for (int64_t l = 0; l < c.layers; ++l) m.layers.push_back(make_block(c, seq, l, axes));
  m.layers.push_back(std::make_unique<FinalNorm>(c));
  const std::string head = c.tied ? names.embedding : names.head;
  m.head = std::make_unique<ClassifierHead>(ClassifierHead::Config{.unit = head,
                                                                   .weight = head + ".weight",
                                                                   .classes = c.vocab,
                                                                   .width = c.width,
                                                                   .init_scale = c.init_scale,
                                                                   .axis = axes.tensor});
  m.rows_per_sample = axes.sequence.positions(seq).size();
  m.sample = {DType::int32, {m.rows_per_sample}};
  m.document_mask = c.document_mask;
  m.part = axes.sequence.rank(), m.parts = axes.sequence.size();
  m.flops_per_sample = double(seq) * flops_per_token(c, seq);
  return m;
}

}  // namespace cleave::model
