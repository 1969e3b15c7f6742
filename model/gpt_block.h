// One transformer block of GPT-2.
#pragma once
#include "model/attention.h"
#include "model/gpt.h"
#include "model/linear.h"

namespace cleave {

// x -> x + attention(norm(x)) -> that + mlp(norm(that)). Over a tensor axis each rank computes its heads and
// its part of the MLP for all rows; norms, dropout and residuals are computed where the rows are.
class GptBlock final : public Layer {
 public:
  GptBlock(const GptConfig& config, int64_t seq, int index, const Axes& axes = {});

  std::vector<UnitSpec> units() const override;
  TensorSpec output(const TensorSpec& in) const override { return in; }
  double flops(const TensorSpec& in) const override {
    return Layer::flops(in) + 6 * double(in.shape[0]) * double(seq_) * double(c_.width);  // causal attention
  }
  void forward(const ForwardArgs& args) const override;
  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& args) const override;

 private:
  struct Activations {
    Tensor mean1, rstd1, norm1, middle, mean2, rstd2, norm2, hidden, active;
    Attention::Kept attention;
  };
  // Of the outputs of a half's two dense layers: all that their weights' gradients need besides activations.
  // The output of the second, which is cut along its inputs, is summed: this rank's rows, and all of them.
  struct Gradients {
    Tensor out, all_out, in;
  };
  struct Gathering {
    Tensor all;
    Event here;
  };
  struct Products {
    Linear qkv, out, fc, down;
  };
  // Where a norm's own gradients go: they are a by-product of its input's, so a split backward keeps them, in
  // fp32, until the weights' part.
  struct NormGradients {
    Tensor weight, bias;
    bool accumulate_weight = false, accumulate_bias = false;
  };
  struct NormInput {
    Tensor x, mean, rstd, weight;
  };

  Products products(std::span<const Tensor> params) const;
  // All rows of `local`, gathered into scratch where rows are cut.
  Tensor gathered(Tensor local, Arena& scratch, Stream& stream) const;
  // Outputs of norms and of the activation function are cheap to make again, so a lean layer does not keep
  // them.
  Activations keep(const ForwardArgs& f, int64_t rows, DType type) const;
  Activations saved(const Saved& s, bool lean) const;
  // The norms' parameters are there in the input's part of a backward only, so a split one keeps what they
  // give until the weights' part. Their statistics are written again, with the same bits.
  void norms_again(const BackwardArgs& a, Activations& s) const;
  void active_again(const BackwardArgs& a, Activations& s) const;

  // With both parts the weights' gradients of each half run while its input's gradient is summed.
  void backward_input(const BackwardArgs& a, const Activations& s) const;
  void mlp_weights(const BackwardArgs& a, const Activations& s, const Gradients& d, Tensor all_norm2) const;
  void attention_weights(const BackwardArgs& a, const Activations& s, const Gradients& d,
                         Tensor all_norm1) const;
  Gathering start_gather(Tensor local, const BackwardArgs& a) const;
  NormGradients norm_gradients(const BackwardArgs& a, size_t first) const;
  static void norm_backward(Tensor dx, Tensor dy, Tensor dresidual, const NormGradients& g,
                            const NormInput& in, Stream& stream);

  void drop(Tensor y, Tensor x, const Position& at, const char* branch, Stream& stream) const;
  // The gradient through a branch's dropout; the residual keeps the undropped one, so this is a copy.
  Tensor dropped(Tensor dy, const BackwardArgs& a, const char* branch) const;

  GptConfig c_;
  int64_t seq_;
  std::string name_;
  Axes axes_;
  TensorAxis axis_;
  Attention attention_;
  int64_t columns_, mlp_;  // of this rank of the tensor axis: of its heads, and of the MLP
};

}  // namespace cleave
