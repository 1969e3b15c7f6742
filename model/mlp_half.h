// MLP half of a block: up projection, activation function or gated unit, down projection. Positions are
// independent.
#pragma once
#include <optional>

#include "kernels/activation.h"
#include "model/axes.h"
#include "model/cut_linear.h"
#include "model/dense.h"
#include "model/half.h"

namespace cleave::model {

// Each rank of a tensor axis has some of the middle columns. They are cheap to recompute from the first
// product, so a lean block does not keep them.
class MlpHalf final : public Half {
 public:
  struct Config {
    std::string name;  // of the block, for reports
    int64_t width = 1, hidden = 1;
    // Parameter names without .weight and .bias. A gated unit has two matrices, gate and up: two names, or
    // one joint name.
    std::vector<std::string> up;
    std::string down;
    bool up_bias = false, down_bias = false;
    Init init, down_init;
    bool gated = false;                                  // activation(gate) * up
    std::optional<kernels::Activation> activation = {};  // default: silu for a gated unit, else gelu_tanh
  };
  // Throws Error(usage) if the axis does not divide the columns.
  MlpHalf(const Config& config, const tensor_parallel::TensorAxis& axis);

  void declare(std::vector<DeclaredUnit>& units) override;
  void attach(const config::AdapterRule& rule, std::vector<std::string>& linears) override;
  void use_fp8(int64_t& layers) override { up_.use_fp8(layers), down_.use_fp8(layers); }
  double flops(int64_t) const override { return 0; }
  void forward(const ForwardArgs& args) const override;
  void backward(const BackwardArgs& args) const override;

 private:
  struct Kept {
    Tensor hidden;  // input of the activation; for a gated unit gate and up side by side
    Tensor active;  // undefined in a lean block
  };
  struct Waiting {
    Tensor dhidden;
  };
  Nonlinearity nonlinearity() const {
    using kernels::Activation;
    return {c_.activation.value_or(c_.gated ? Activation::silu : Activation::gelu_tanh), c_.gated};
  }
  void activate(Tensor active, Tensor hidden, Stream& stream) const;
  // The two products of one backward.
  struct Bound {
    Linear up, down;
  };
  void add_weights(const BackwardArgs& args, const Bound& bound, const Kept& kept,
                   const Linear::OutputGradient& dy, Tensor dhidden, const CutLinear::Gathering& x) const;

  Config c_;
  tensor_parallel::TensorAxis axis_;
  int64_t columns_;  // middle columns of this rank
  Dense up_, down_;
};

}  // namespace cleave::model
