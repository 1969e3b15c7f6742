// A frozen dense layer with a trained low-rank pair of products: two units in one layer.
#pragma once
#include "kernels/elementwise.h"
#include "model/linear.h"

namespace cleave::testing {

// y = x W^T + c + (x A^T) B^T with A [2, width] and B [width, 2]. W and c form the unit `base`, which several
// layers may share.
class LowRank final : public model::Layer {
 public:
  LowRank(std::string name, std::string base, int64_t width, bool frozen = true)
      : name_(std::move(name)), base_(std::move(base)), width_(width), frozen_(frozen) {}

  std::vector<UnitSpec> units() const override {
    const Init init{Init::Kind::normal, 0.3f};
    return {
        {base_,
         {{base_ + ".weight", {width_, width_}, init, true}, {base_ + ".bias", {width_}, init, false}},
         frozen_},
        {name_, {{name_ + ".a", {kRank, width_}, init, true}, {name_ + ".b", {width_, kRank}, init, true}}}};
  }
  model::TensorSpec output(const model::TensorSpec& in) const override { return in; }
  void forward(const model::ForwardArgs& a) const override {
    const int64_t rows = a.x.numel() / width_;
    const Tensor inner = a.keep.take(a.x.dtype(), {rows, kRank});
    a.saved.put(this, Kept{inner});
    const Tensor beside = a.scratch.take(a.x.dtype(), a.y.shape());
    model::Linear{width_, width_, a.params[0], a.params[1]}.forward(a.y, a.x, a.stream);
    model::Linear{width_, kRank, a.params[2]}.forward(inner, a.x, a.stream);
    model::Linear{kRank, width_, a.params[3]}.forward(beside, inner, a.stream);
    kernels::launch(kernels::Add{.y = a.y, .a = a.y, .b = beside}, a.stream);
  }
  bool splits_backward() const override { return true; }
  void backward(const model::BackwardArgs& a) const override {
    const bool later = a.part == model::BackwardPart::input;
    Tensor dinner;
    if (a.part == model::BackwardPart::weight) {
      dinner = a.for_weight->get<Waiting>(this).dinner;
    } else {
      dinner = (later ? *a.keep : a.scratch).take(a.x.dtype(), {a.x.numel() / width_, kRank});
      backward_input(a, dinner);
    }
    if (later) return a.for_weight->put(this, Waiting{dinner});
    model::Linear{width_, width_}.backward_weight(a.dy, a.x, a.grads[0], &a.grads[1], a.stream);
    model::Linear{width_, kRank}.backward_weight(dinner, a.x, a.grads[2], nullptr, a.stream);
    model::Linear{kRank, width_}.backward_weight(a.dy, a.saved.get<Kept>(this).inner, a.grads[3], nullptr,
                                                 a.stream);
  }

 private:
  static constexpr int64_t kRank = 2;
  struct Kept {
    Tensor inner;
  };
  struct Waiting {
    Tensor dinner;
  };

  void backward_input(const model::BackwardArgs& a, Tensor dinner) const {
    model::Linear{kRank, width_, a.params[3]}.backward_input(dinner, a.dy, a.stream);
    if (!a.dx.defined()) return;
    const Tensor beside = a.scratch.take(a.x.dtype(), a.dx.shape());
    model::Linear{width_, width_, a.params[0]}.backward_input(a.dx, a.dy, a.stream);
    model::Linear{width_, kRank, a.params[2]}.backward_input(beside, dinner, a.stream);
    kernels::launch(kernels::Add{.y = a.dx, .a = a.dx, .b = beside}, a.stream);
  }

  std::string name_, base_;
  int64_t width_;
  bool frozen_;
};

}  // namespace cleave::testing
