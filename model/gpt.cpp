#include "model/gpt.h"

#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "model/classifier_head.h"
#include "model/gpt_block.h"
#include "model/row_dropout.h"

namespace cleave {
namespace {

class GptEmbedding final : public Layer {
 public:
  GptEmbedding(const GptConfig& c, int64_t seq, DType dtype, const Axes& axes)
      : c_(c),
        seq_(seq),
        dtype_(dtype),
        axes_(axes),
        axis_(axes.tensor),
        positions_(axes.sequence.positions(seq)) {}

  std::vector<UnitSpec> units() const override {
    const Init normal{Init::Kind::normal, 0.02f};
    return {{"wte", {axis_.cut({"wte.weight", {c_.vocab, c_.width}, normal, true}, 0)}},
            {"wpe", {{"wpe.weight", {c_.positions, c_.width}, normal, true}}}};
  }
  TensorSpec output(const TensorSpec& in) const override {
    return {dtype_, {axis_.local_rows(in.shape.numel()), c_.width}};
  }
  double flops(const TensorSpec&) const override { return 0; }  // rows are looked up

  void forward(const ForwardArgs& a) const override {
    const Tensor partial = axis_.all_rows_of(a.y, a.scratch);
    const Tensor positions = axis_.rank() == 0 ? a.params[1] : Tensor();  // summed: once
    launch(EmbeddingForward{.y = partial,
                            .tokens = a.x,
                            .wte = a.params[0],
                            .wpe = positions,
                            .part = part(),
                            .seq = positions_.size(),
                            .first_position = positions_.begin},
           a.stream);
    axis_.sum(a.y, partial, a.stream, "wte");
    if (a.train) drop(a.y, a.position, a.stream);
  }
  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& a) const override {
    if (a.part == BackwardPart::input) return;  // tokens have no gradient
    drop(a.dy, a.position, a.stream);
    const Tensor dy = axis_.all_rows_of(a.dy, a.scratch);
    axis_.gather(dy, a.dy, a.stream, "wte");
    launch(EmbeddingBackward{.dwte = a.grads[0].tensor,
                             .dy = dy,
                             .tokens = a.x,
                             .part = part(),
                             .accumulate_wte = a.grads[0].accumulate()},
           a.stream);
    backward_positions(a);
  }

 private:
  // Positions are whole on every rank: the gradient of this rank's rows.
  void backward_positions(const BackwardArgs& a) const {
    const int64_t rows = a.dy.dim(0), first = axis_.cuts_rows() ? axis_.rank() * rows : 0;
    Tensor dwpe = a.grads[1].tensor;
    bool added = a.grads[1].accumulate();
    if (positions_.size() < seq_) {
      if (!added) launch(Fill{.y = dwpe}, a.stream);
      dwpe = dwpe.rows(positions_), added = true;
    }
    launch(EmbeddingBackward{.dwpe = dwpe,
                             .dy = a.dy,
                             .tokens = a.x.slice({first, first + rows}),
                             .seq = positions_.size(),
                             .first_row = first,
                             .accumulate_wpe = added},
           a.stream);
  }
  VocabPart part() const { return {axis_.padded_part(c_.vocab).size * axis_.rank(), c_.vocab}; }
  void drop(Tensor y, const Position& p, Stream& s) const {
    RowDropout{c_.dropout, seq_, axes_}.run(y, y, p, "embedding", s);
  }
  GptConfig c_;
  int64_t seq_;
  DType dtype_;
  Axes axes_;
  TensorAxis axis_;
  Range positions_;  // this rank's
};

class FinalNorm final : public Layer {
 public:
  explicit FinalNorm(const GptConfig& c) : c_(c) {}
  std::vector<UnitSpec> units() const override {
    return {
        {"ln_f",
         {{"ln_f.weight", {c_.width}, {Init::Kind::ones, 0}, false}, {"ln_f.bias", {c_.width}, {}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  void forward(const ForwardArgs& a) const override {
    const Tensor mean = a.saved.keep(a.keep, DType::fp32, {a.x.dim(0)});
    const Tensor rstd = a.saved.keep(a.keep, DType::fp32, {a.x.dim(0)});
    launch(LayerNormForward{.y = a.y,
                            .sum = {},
                            .mean = mean,
                            .rstd = rstd,
                            .x = a.x,
                            .residual = {},
                            .weight = a.params[0],
                            .bias = a.params[1],
                            .eps = c_.norm_eps},
           a.stream);
  }
  void backward(const BackwardArgs& a) const override {
    auto g = a.grads;
    launch(LayerNormBackward{.dx = a.dx,
                             .dweight = g[0].tensor,
                             .dbias = g[1].tensor,
                             .dy = a.dy,
                             .x = a.x,
                             .mean = a.saved[0],
                             .rstd = a.saved[1],
                             .weight = a.params[0],
                             .dresidual = {},
                             .accumulate_weight = g[0].accumulate(),
                             .accumulate_bias = g[1].accumulate()},
           a.stream);
  }

 private:
  GptConfig c_;
};

}  // namespace

Model make_gpt(const GptConfig& c, DType dtype, int64_t seq, std::string name, const Axes& axes) {
  require(c.heads > 0 && c.width % c.heads == 0, Exit::usage, "a width of {} does not divide by {} heads",
          c.width, c.heads);
  require(0 < seq && seq <= c.positions, Exit::usage, "--seq_len {} is outside 1..{}, the model's positions",
          seq, c.positions);
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  m.layers.push_back(std::make_unique<GptEmbedding>(c, seq, dtype, axes));
  for (int l = 0; l < int(c.layers); ++l) m.layers.push_back(std::make_unique<GptBlock>(c, seq, l, axes));
  m.layers.push_back(std::make_unique<FinalNorm>(c));
  m.head = std::make_unique<ClassifierHead>(ClassifierHead::Config{
      .unit = "wte", .weight = "wte.weight", .classes = c.vocab, .width = c.width, .axis = axes.tensor});
  m.rows_per_sample = axes.sequence.positions(seq).size();
  m.sample = {DType::int32, {m.rows_per_sample}};
  m.part = axes.sequence.rank(), m.parts = axes.sequence.size();
  // 6 FLOPs a weight and token in matrix products, and causal attention counted once.
  const double weights =
      double(c.layers) * 12.0 * double(c.width) * double(c.width) + double(c.vocab) * double(c.width);
  m.flops_per_sample = double(seq) * (6.0 * weights + 6.0 * double(c.layers) * double(c.width) * double(seq));
  return m;
}

}  // namespace cleave
