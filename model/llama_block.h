// One decoder block of model/llama.h.
#pragma once
#include <memory>

#include "model/attention.h"
#include "model/cut_linear.h"
#include "model/llama.h"

namespace cleave {

// x -> x + attention(norm(x)) -> that + mlp(norm(that)). Over a tensor axis each rank computes its heads and
// its part of the MLP for all rows; norms and residuals are computed where the rows are.
class LlamaBlock final : public Layer {
 public:
  LlamaBlock(const LlamaConfig& config, const Axes& axes, int64_t seq, int index);

  std::vector<UnitSpec> units() const override;
  TensorSpec output(const TensorSpec& in) const override { return in; }
  double flops(const TensorSpec& in) const override {  // and causal attention, of all heads
    return Layer::flops(in) + 6 * double(in.shape[0]) * double(seq_) * double(c_.heads) * double(c_.head_dim);
  }
  void forward(const ForwardArgs& args) const override;
  void backward(const BackwardArgs& args) const override;

 private:
  struct Activations {
    Tensor rstd1, norm1, middle, rstd2, norm2, gate_up, gated;
    Attention::Kept attention;
  };
  // The matrix products behind the projections of queries, keys and values, on the joined parameters.
  struct Products {
    Linear out, gate_up, down;
  };
  // What this rank computes of a block's heads and MLP. With more ranks than key/value heads, several ranks
  // compute the same one from projections that every rank has whole.
  struct Share {
    int64_t heads = 0, kv_heads = 0, mlp_width = 0;
    bool whole_kv = false;
    Range kv_rows = {};  // with whole_kv: of the projections' outputs
  };
  static Share share_of(const LlamaConfig& config, const TensorAxis& axis);
  Activations keep(const ForwardArgs& f, int64_t rows, DType type) const;
  Activations saved(const Saved& s, bool lean) const;
  // Of a lean layer: what was not kept, in the backward's scratch.
  Tensor norm_again(const BackwardArgs& a, Tensor x, Tensor rstd, size_t weight) const;
  Products products(std::span<const Tensor> params) const;
  // The projections of queries, keys and values as one; with whole_kv put together in scratch.
  Linear projection(std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  Tensor together(std::span<const Tensor> three, Arena& scratch, Stream& stream) const;
  // The gradients of the same projections' parameters from those of their outputs, of all rows.
  void projection_weights(const BackwardArgs& a, Tensor dqkv, Tensor x) const;
  void add_apart(std::span<ParamGradient> three, Tensor gradient, Stream& stream) const;
  void backward_mlp(const BackwardArgs& a, const Activations& s, Tensor dnorm) const;
  void backward_attention(const BackwardArgs& a, const Activations& s, Tensor dmiddle, Tensor dnorm) const;

  std::span<const Tensor> rotation(std::span<const Tensor> constants) const;

  LlamaConfig c_;
  int64_t seq_;
  TensorAxis axis_;
  Share share_;
  Attention attention_;
  std::string name_;
};

}  // namespace cleave
