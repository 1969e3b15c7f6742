#include "model/llama.h"

#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "model/classifier_head.h"
#include "model/llama_block.h"

namespace cleave {
namespace {

constexpr const char *kEmbedding = "model.embed_tokens", *kEmbeddingWeight = "model.embed_tokens.weight";

class TokenEmbedding final : public Layer {
 public:
  TokenEmbedding(const LlamaConfig& c, DType dtype, const Axes& axes)
      : c_(c), dtype_(dtype), axis_(axes.tensor) {}

  std::vector<UnitSpec> units() const override {
    const Init normal{Init::Kind::normal, c_.init_scale};
    return {{kEmbedding, {axis_.cut({kEmbeddingWeight, {c_.vocab, c_.width}, normal, true}, 0)}}};
  }
  TensorSpec output(const TensorSpec& in) const override {
    return {dtype_, {axis_.local_rows(in.shape.numel()), c_.width}};
  }
  double flops(const TensorSpec&) const override { return 0; }  // rows are looked up
  void forward(const ForwardArgs& a) const override {
    const Tensor partial = axis_.all_rows_of(a.y, a.scratch);
    launch(EmbeddingForward{.y = partial, .tokens = a.x, .wte = a.params[0], .part = part()}, a.stream);
    axis_.sum(a.y, partial, a.stream, kEmbedding);
  }
  void backward(const BackwardArgs& a) const override {
    const Tensor dy = axis_.all_rows_of(a.dy, a.scratch);
    axis_.gather(dy, a.dy, a.stream, kEmbedding);
    launch(EmbeddingBackward{.dwte = a.grads[0].tensor,
                             .dy = dy,
                             .tokens = a.x,
                             .part = part(),
                             .accumulate_wte = a.grads[0].accumulate()},
           a.stream);
  }

 private:
  VocabPart part() const { return {axis_.padded_part(c_.vocab).size * axis_.rank(), c_.vocab}; }

  LlamaConfig c_;
  DType dtype_;
  TensorAxis axis_;
};

class FinalRmsNorm final : public Layer {
 public:
  explicit FinalRmsNorm(const LlamaConfig& c) : c_(c) {}

  std::vector<UnitSpec> units() const override {
    return {{"model.norm", {{"model.norm.weight", {c_.width}, {Init::Kind::ones, 0}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  void forward(const ForwardArgs& a) const override {
    const Tensor rstd = a.saved.keep(a.keep, DType::fp32, {a.x.dim(0)});
    launch(RmsNormForward{.y = a.y, .rstd = rstd, .x = a.x, .weight = a.params[0], .eps = c_.norm_eps},
           a.stream);
  }
  void backward(const BackwardArgs& a) const override {
    launch(RmsNormBackward{.dx = a.dx,
                           .dweight = a.grads[0].tensor,
                           .dy = a.dy,
                           .x = a.x,
                           .rstd = a.saved[0],
                           .weight = a.params[0],
                           .accumulate = a.grads[0].accumulate()},
           a.stream);
  }

 private:
  LlamaConfig c_;
};

void check_sizes(const LlamaConfig& c, int64_t seq) {
  require(c.vocab > 0 && c.width > 0 && c.layers > 0 && c.mlp_width > 0, Exit::usage,
          "a model needs a vocabulary, a width, layers and an MLP width above 0, got {}, {}, {} and {}",
          c.vocab, c.width, c.layers, c.mlp_width);
  require(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, Exit::usage,
          "{} heads do not divide into groups over {} key/value heads", c.heads, c.kv_heads);
  require(c.head_dim > 0 && c.head_dim % 2 == 0, Exit::usage,
          "a head of {} elements cannot be rotated; head_dim must be even", c.head_dim);
  require(0 < seq && seq <= c.positions, Exit::usage, "--seq_len {} is outside 1..{}, the model's positions",
          seq, c.positions);
}

// 6 FLOPs a weight and token in matrix products, and causal attention counted once.
double flops_per_token(const LlamaConfig& c, int64_t seq) {
  const double w = double(c.width), q = double(c.heads * c.head_dim), kv = double(c.kv_heads * c.head_dim);
  const double block = w * (2 * q + 2 * kv + 3 * double(c.mlp_width));
  return 6 * (double(c.layers) * block + double(c.vocab) * w) + 6 * double(c.layers) * q * double(seq);
}

}  // namespace

Model make_llama(const LlamaConfig& c, DType dtype, int64_t seq, std::string name, const Axes& axes) {
  check_sizes(c, seq);
  const auto table = rope_table(seq, rope_frequencies(c.head_dim, c.rope_theta, c.rope));
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  m.constants = table->tensors(), m.memory = table;
  m.layers.push_back(std::make_unique<TokenEmbedding>(c, dtype, axes));
  for (int l = 0; l < int(c.layers); ++l) m.layers.push_back(std::make_unique<LlamaBlock>(c, axes, seq, l));
  m.layers.push_back(std::make_unique<FinalRmsNorm>(c));
  m.head = std::make_unique<ClassifierHead>(
      ClassifierHead::Config{.unit = c.tied ? kEmbedding : "lm_head",
                             .weight = c.tied ? kEmbeddingWeight : "lm_head.weight",
                             .classes = c.vocab,
                             .width = c.width,
                             .init_scale = c.init_scale,
                             .axis = axes.tensor});
  m.rows_per_sample = axes.sequence.positions(seq).size();
  m.sample = {DType::int32, {m.rows_per_sample}};
  m.part = axes.sequence.rank(), m.parts = axes.sequence.size();
  m.flops_per_sample = double(seq) * flops_per_token(c, seq);
  return m;
}

}  // namespace cleave
