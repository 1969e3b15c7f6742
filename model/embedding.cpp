#include "model/embedding.h"

#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "model/family.h"
#include "model/parameter.h"
#include "model/row_dropout.h"

namespace cleave::model {
namespace {

// Returns the nearest number of the type.
float rounded(float x, DType type) {
  if (type == DType::bf16) return to_float(from_float<bf16>(x));
  return type == DType::fp16 ? to_float(from_float<fp16>(x)) : x;
}

// Embedding of tokens, and of positions if they are learned.
class Embedding final : public Layer {
 public:
  Embedding(const ModelConfig& c, float scale, int64_t seq, DType dtype, const Axes& axes)
      : name_(c.family->names.embedding),
        vocab_(c.vocab),
        width_(c.width),
        seq_(seq),
        dtype_(dtype),
        axis_(axes.tensor),
        positions_(axes.sequence.positions(seq)),
        scale_(rounded(scale, dtype)),
        dropout_{c.dropout, seq, axes} {
    const Init normal{Init::Kind::normal, c.init_scale};
    const char* learned = c.family->names.positions;
    tokens_ = Parameter(axis_.cut_padded({name_ + ".weight", {vocab_, width_}, normal, true}, 0));
    declared_ = {{name_, {&tokens_}}};
    if (learned) {
      learned_ = Parameter({std::string(learned) + ".weight", {c.positions, width_}, normal, true});
      declared_.push_back({learned, {&learned_}});
    }
    units_ = settle(declared_);
  }

  std::vector<UnitSpec> units() const override { return units_; }
  void freeze(const config::FreezeRule& rule) override { units_ = settle(declared_, rule); }
  TensorSpec output(const TensorSpec& in) const override {
    return {dtype_, {axis_.local_rows(in.shape.numel()), width_}};
  }
  double flops(const TensorSpec&) const override { return 0; }  // rows are looked up

  void forward(const ForwardArgs& a) const override {
    const Tensor partial = axis_.all_rows_of(a.y, a.scratch), positions = positions_of(a);
    kernels::launch(kernels::EmbeddingForward{.y = partial,
                                              .tokens = a.x,
                                              .wte = tokens_.in(a.params),
                                              .wpe = axis_.rank() == 0 ? learned_.in(a.params)
                                                                       : Tensor(),  // summed: once
                                              .positions = positions,
                                              .part = part(),
                                              .seq = positions_.size(),
                                              .first_position = positions_.begin},
                    a.stream);
    axis_.sum(a.y, partial, a.stream, name_);
    if (scale_ != 1) kernels::launch(kernels::Scale{.y = a.y, .x = a.y, .factor = scale_}, a.stream);
    if (a.train) dropout_.run(a.y, a.y, a.position, kDropout, a.stream);
  }
  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& a) const override {
    if (a.part == BackwardPart::input) return;  // tokens have no gradient
    ParamGradient &dtokens = *tokens_.in(a.grads), *dpositions = learned_.in(a.grads);
    const bool of_positions = dpositions && dpositions->wanted();
    if (!dtokens.wanted() && !of_positions) return;
    dropout_.run(a.dy, a.dy, a.position, kDropout, a.stream);
    if (scale_ != 1) kernels::launch(kernels::Scale{.y = a.dy, .x = a.dy, .factor = scale_}, a.stream);
    if (dtokens.wanted()) backward_tokens(a, dtokens);
    if (of_positions) backward_positions(a, *dpositions);
  }

 private:
  static constexpr const char* kDropout = "embedding";

  // With documents: the positions of this rank's tokens in them, for the backward.
  struct Kept {
    Tensor positions;
  };
  Tensor positions_of(const ForwardArgs& a) const {
    if (a.cache.defined() && learned_) return a.cache.rows.positions;
    if (!learned_ || !a.documents.defined()) return {};
    const int64_t samples = a.x.numel() / positions_.size();
    const Tensor positions = a.keep.take(DType::int32, {samples, positions_.size()});
    kernels::launch(kernels::DocumentPositions{.positions = positions,
                                               .documents = a.documents.view({samples, seq_}),
                                               .first = positions_.begin},
                    a.stream);
    a.saved.put(this, Kept{positions});
    return positions;
  }

  void backward_tokens(const BackwardArgs& a, ParamGradient& gradient) const {
    const Tensor dy = axis_.all_rows_of(a.dy, a.scratch);
    axis_.gather(dy, a.dy, a.stream, name_);
    kernels::launch(kernels::EmbeddingBackward{.dwte = gradient.tensor,
                                               .dy = dy,
                                               .tokens = a.x,
                                               .part = part(),
                                               .accumulate_wte = gradient.accumulate()},
                    a.stream);
  }

  // Computes the gradient of this rank's rows; the position table is whole on every rank.
  void backward_positions(const BackwardArgs& a, ParamGradient& gradient) const {
    const int64_t rows = a.dy.dim(0), first = axis_.cuts_rows() ? axis_.rank() * rows : 0;
    Tensor dpositions = gradient.tensor;
    bool added = gradient.accumulate();
    if (a.documents.defined())  // any token may use any row of the table
      return kernels::launch(
          kernels::EmbeddingBackward{.dwte = dpositions,
                                     .dy = a.dy,
                                     .tokens = a.saved.get<Kept>(this).positions.slice({first, first + rows}),
                                     .accumulate_wte = added},
          a.stream);
    if (positions_.size() < seq_) {
      if (!added) kernels::launch(kernels::Fill{.y = dpositions}, a.stream);
      dpositions = dpositions.rows(positions_), added = true;
    }
    kernels::launch(kernels::EmbeddingBackward{.dwpe = dpositions,
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
  float scale_;      // factor of the embedding, rounded to the model's type as in transformers
  RowDropout dropout_;
  Parameter tokens_, learned_;
  std::vector<DeclaredUnit> declared_;
  std::vector<UnitSpec> units_;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const ModelConfig& config, float scale, int64_t seq, DType dtype,
                                      const Axes& axes) {
  return std::make_unique<Embedding>(config, scale, seq, dtype, axes);
}

}  // namespace cleave::model
