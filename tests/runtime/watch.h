// A layer with state and a side loss.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/elementwise.h"
#include "model/layer.h"
#include "tests/runtime/identity.h"

namespace cleave::testing {

// Identity layer. Records the largest absolute value so far and the number of rows in the last step. Its side
// loss is `weight` / 2 times the sum of squares, with a gradient that depends on the largest value of earlier
// steps.
class Watch final : public Identity {
 public:
  explicit Watch(std::string name, float weight = 0) : name_(std::move(name)), weight_(weight) {}

  std::vector<model::LayerState> states() const override {
    return {{.name = name_ + ".largest", .shape = {1}, .by = Reduction::max},
            {.name = name_ + ".rows", .shape = {2}, .by = Reduction::sum, .begin = -1, .saved = false}};
  }
  bool has_side_loss() const override { return weight_ > 0; }

  void forward(const model::ForwardArgs& a) const override {
    Identity::forward(a);
    if (a.states[0].seen.defined()) note(a);
    if (!a.side_loss.defined()) return;
    const Tensor squares = a.scratch.take(DType::fp64, {1});
    kernels::launch(kernels::SumSquares{.out = squares, .x = a.x}, a.stream);
    a.stream.enqueue([sum = a.side_loss, squares, factor = factor_of(a.states)] {
      sum.as<double>()[0] += double(factor()) / 2 * squares.as<double>()[0];
    });
  }
  void backward(const model::BackwardArgs& a) const override {
    if (!a.dx.defined()) return;
    const Tensor x = a.scratch.take(DType::fp32, a.x.shape()), dx = a.scratch.take(DType::fp32, a.x.shape());
    kernels::launch(kernels::Cast{.y = x, .x = a.x}, a.stream);
    kernels::launch(kernels::Cast{.y = dx, .x = a.dy}, a.stream);
    if (weight_ > 0)
      a.stream.enqueue([x, dx, scale = a.scale, factor = factor_of(a.states)] {
        for (int64_t i = 0; i < x.numel(); ++i) dx.as<float>()[i] += scale * factor() * x.as<float>()[i];
      });
    kernels::launch(kernels::Cast{.y = a.dx, .x = dx}, a.stream);
  }
  void join(std::span<const model::StateViews> states, Stream& stream) const override {
    stream.enqueue([largest = states[0], rows = states[1]] {
      float& last = largest.lasting.as<float>()[0];
      last = std::max(last, largest.seen.as<float>()[0]);
      for (int i = 0; i < 2; ++i) rows.lasting.as<float>()[i] = rows.seen.as<float>()[i];
    });
  }

 private:
  std::function<float()> factor_of(std::span<const model::StateViews> states) const {
    return [weight = weight_, largest = states[0].lasting] { return weight / (1 + largest.as<float>()[0]); };
  }
  void note(const model::ForwardArgs& a) const {
    const Tensor x = a.scratch.take(DType::fp32, a.x.shape());
    kernels::launch(kernels::Cast{.y = x, .x = a.x}, a.stream);
    a.stream.enqueue([x, largest = a.states[0].seen, rows = a.states[1].seen] {
      for (int64_t i = 0; i < x.numel(); ++i)
        largest.as<float>()[0] = std::max(largest.as<float>()[0], std::abs(x.as<float>()[i]));
      rows.as<float>()[0] += float(x.shape()[0]), rows.as<float>()[1] += 1;
    });
  }

  std::string name_;
  float weight_;
};

}  // namespace cleave::testing
