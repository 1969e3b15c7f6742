#include "model/gpt_block.h"

#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "model/attention.h"
#include "model/cut_linear.h"
#include "model/row_dropout.h"

namespace cleave {
namespace {

class GptBlock final : public Layer {
 public:
  GptBlock(const GptConfig& c, int64_t seq, int index, const Axes& axes)
      : c_(c),
        seq_(seq),
        name_(fmt::format("h.{}", index)),
        axes_(axes),
        axis_(axes.tensor),
        attention_(attention_sizes(c, seq, axis_), axes.sequence),
        columns_(attention_.width()),
        mlp_(axis_.mine(4 * c.width, "columns of the MLP").size()) {}

  std::vector<UnitSpec> units() const override {
    const int64_t w = c_.width;
    const Init one{Init::Kind::ones, 0}, zero{}, normal{Init::Kind::normal, 0.02f};
    // Residual projections start smaller, as in the GPT-2 report: 0.02 / sqrt(2 * layers).
    const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * float(c_.layers))};
    const std::string attn = name_ + ".attn.", mlp = name_ + ".mlp.";
    return {{name_,
             {{name_ + ".ln_1.weight", {w}, one, false},
              {name_ + ".ln_1.bias", {w}, zero, false},
              axis_.cut({attn + "c_attn.weight", {3 * w, w}, normal, true}, 0, 3),
              axis_.cut({attn + "c_attn.bias", {3 * w}, zero, false}, 0, 3),
              axis_.cut({attn + "c_proj.weight", {w, w}, residual, true}, 1),
              {attn + "c_proj.bias", {w}, zero, false},
              {name_ + ".ln_2.weight", {w}, one, false},
              {name_ + ".ln_2.bias", {w}, zero, false},
              axis_.cut({mlp + "c_fc.weight", {4 * w, w}, normal, true}, 0),
              axis_.cut({mlp + "c_fc.bias", {4 * w}, zero, false}, 0),
              axis_.cut({mlp + "c_proj.weight", {w, 4 * w}, residual, true}, 1),
              {mlp + "c_proj.bias", {w}, zero, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  double flops(const TensorSpec& in) const override {
    return Layer::flops(in) + 6 * double(in.shape[0]) * double(seq_) * double(c_.width);  // causal attention
  }

  void forward(const ForwardArgs& a) const override {
    const int64_t rows = a.x.dim(0), w = c_.width;
    const DType t = a.x.dtype();
    const auto p = a.params;
    Activations s = keep(a, rows, t);
    launch(LayerNormForward{.y = s.norm1,
                            .sum = {},
                            .mean = s.mean1,
                            .rstd = s.rstd1,
                            .x = a.x,
                            .residual = {},
                            .weight = p[0],
                            .bias = p[1],
                            .eps = c_.norm_eps},
           a.stream);
    const Products product = products(p);
    const Tensor qkv = attention_.input(s.attention, a.scratch);
    const CutLinear cut{axis_, a.stream, name_};
    cut.forward_gathered(product.qkv, qkv, s.norm1, a.scratch);
    attention_.forward(s.attention, qkv, {a.scratch, a.stream, name_});
    const Tensor branch = a.scratch.take(t, {rows, w}), partial = axis_.all_rows_of(branch, a.scratch);
    cut.forward_summed(product.out, branch, partial, s.attention.out);
    if (a.train) drop(branch, branch, a.position, "attn", a.stream);
    launch(LayerNormForward{.y = s.norm2,
                            .sum = s.middle,
                            .mean = s.mean2,
                            .rstd = s.rstd2,
                            .x = branch,
                            .residual = a.x,
                            .weight = p[6],
                            .bias = p[7],
                            .eps = c_.norm_eps},
           a.stream);
    cut.forward_gathered(product.fc, s.hidden, s.norm2, a.scratch);
    launch(ActivationForward{.y = s.active, .x = s.hidden, .kind = c_.activation}, a.stream);
    cut.forward_summed(product.down, branch, partial, s.active);
    if (a.train) drop(branch, branch, a.position, "mlp", a.stream);
    launch(Add{.y = a.y, .a = s.middle, .b = branch}, a.stream);
  }

  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& a) const override {
    Activations s = saved(a.saved, a.lean);
    if (a.part != BackwardPart::weight) {
      if (a.lean && a.part == BackwardPart::both) norms_again(a, s), active_again(a, s);
      backward_input(a, s);
      if (a.lean && a.part == BackwardPart::input) norms_again(a, s);
      return;
    }
    const Saved& kept = *a.for_weight;
    if (a.lean) s.norm1 = kept[7], s.norm2 = kept[8], active_again(a, s);
    const Tensor dmlp = dropped(a.dy, a, "mlp"), dattention = dropped(kept[1], a, "attn");
    mlp_weights(a, s, {dmlp, gathered(dmlp, a.scratch, a.stream), kept[0]},
                gathered(s.norm2, a.scratch, a.stream));
    attention_weights(a, s, {dattention, gathered(dattention, a.scratch, a.stream), kept[2]},
                      gathered(s.norm1, a.scratch, a.stream));
    for (int norm : {0, 1})
      for (int i : {0, 1}) add(a.grads[size_t(6 * norm + i)], kept[3 + 2 * norm + i], a.stream);
  }

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
  struct Products {
    Linear qkv, out, fc, down;
  };
  Products products(std::span<const Tensor> p) const {
    const int64_t w = c_.width;
    auto summed = [&](const Tensor& bias) { return axis_.rank() == 0 ? bias : Tensor(); };  // once
    return {.qkv = {w, 3 * columns_, p[2], p[3]},
            .out = {columns_, w, p[4], summed(p[5])},
            .fc = {w, mlp_, p[8], p[9]},
            .down = {mlp_, w, p[10], summed(p[11])}};
  }
  Tensor gathered(Tensor local, Arena& scratch, Stream& stream) const {
    const Tensor all = axis_.all_rows_of(local, scratch);
    axis_.gather(all, local, stream, name_);
    return all;
  }

  // With both parts the weights' gradients of each half run while its input's gradient is summed.
  void backward_input(const BackwardArgs& a, const Activations& s) const {
    const int64_t rows = a.x.dim(0), all = axis_.all_rows(rows), w = c_.width;
    const DType t = a.x.dtype();
    const auto p = a.params;
    const Products product = products(p);
    auto take = [&](int64_t n, int64_t columns) {  // lives until the weights' part
      const Shape shape{n, columns};
      return a.for_weight ? a.for_weight->keep(*a.keep, t, shape) : a.scratch.take(t, shape);
    };
    const Tensor wide = take(all, mlp_), dmiddle = take(rows, w), dqkv = take(all, 3 * columns_),
                 narrow = a.scratch.take(t, {rows, w}), partial = axis_.all_rows_of(narrow, a.scratch),
                 dheads = partial.slice({0, all * columns_}).view({all, columns_});
    const NormGradients norm1 = norm_gradients(a, 0), norm2 = norm_gradients(a, 6);
    const CutLinear cut{axis_, a.stream, name_};
    const bool both = a.part == BackwardPart::both;
    const Tensor dmlp = dropped(a.dy, a, "mlp"),
                 all_dmlp = cut.backward_gathered(product.down, wide, dmlp, a.scratch);
    const Gathering norm2_of_all = both ? start_gather(s.norm2, a) : Gathering();
    launch(ActivationBackward{.dx = wide, .dy = wide, .x = s.hidden, .kind = c_.activation}, a.stream);
    const Event mlp_summed = cut.backward_summed(product.fc, narrow, partial, wide);
    if (both) mlp_weights(a, s, {dmlp, all_dmlp, wide}, come(norm2_of_all, a));
    a.stream.wait(mlp_summed);
    norm_backward(dmiddle, narrow, a.dy, norm2, {s.middle, s.mean2, s.rstd2, p[6]}, a.stream);
    const Tensor dattn = dropped(dmiddle, a, "attn"),
                 all_dattn = cut.backward_gathered(product.out, dheads, dattn, a.scratch);
    const Gathering norm1_of_all = both ? start_gather(s.norm1, a) : Gathering();
    attention_.backward(dqkv, dheads, s.attention, {a.scratch, a.stream, name_});
    const Event qkv_summed = cut.backward_summed(product.qkv, narrow, partial, dqkv);
    if (both) attention_weights(a, s, {dattn, all_dattn, dqkv}, come(norm1_of_all, a));
    a.stream.wait(qkv_summed);
    norm_backward(a.dx, narrow, dmiddle, norm1, {a.x, s.mean1, s.rstd1, p[0]}, a.stream);
  }

  void mlp_weights(const BackwardArgs& a, const Activations& s, const Gradients& d, Tensor all_norm2) const {
    const auto g = a.grads;
    Linear{.in = mlp_, .out = c_.width}.backward_weight(d.all_out, s.active, g[10], nullptr, a.stream);
    bias(g[11], d.out, a.stream);
    Linear{.in = c_.width, .out = mlp_}.backward_weight(d.in, all_norm2, g[8], &g[9], a.stream);
  }
  void attention_weights(const BackwardArgs& a, const Activations& s, const Gradients& d,
                         Tensor all_norm1) const {
    const auto g = a.grads;
    Linear{.in = columns_, .out = c_.width}.backward_weight(d.all_out, s.attention.out, g[4], nullptr,
                                                            a.stream);
    bias(g[5], d.out, a.stream);
    Linear{.in = c_.width, .out = 3 * columns_}.backward_weight(d.in, all_norm1, g[2], &g[3], a.stream);
  }
  // Of a sum, from this rank's rows, as the norms' gradients.
  static void bias(ParamGradient& of, Tensor dy, Stream& stream) {
    launch(BiasGradient{.db = of.tensor, .dy = dy, .accumulate = of.accumulate()}, stream);
  }

  struct Gathering {
    Tensor all;
    Event here;
  };
  Gathering start_gather(Tensor local, const BackwardArgs& a) const {
    const Tensor all = axis_.all_rows_of(local, a.scratch);
    return {all, axis_.start_gather(all, local, a.stream, name_)};
  }
  static Tensor come(const Gathering& g, const BackwardArgs& a) { return a.stream.wait(g.here), g.all; }

  // Where a norm's own gradients go: they are a by-product of its input's, so a split backward keeps them, in
  // fp32, until the weights' part.
  struct NormGradients {
    Tensor weight, bias;
    bool accumulate_weight = false, accumulate_bias = false;
  };
  NormGradients norm_gradients(const BackwardArgs& a, size_t first) const {
    if (a.for_weight) {
      const Tensor weight = a.for_weight->keep(*a.keep, DType::fp32, {c_.width});
      return {weight, a.for_weight->keep(*a.keep, DType::fp32, {c_.width})};
    }
    ParamGradient &weight = a.grads[first], &bias = a.grads[first + 1];
    return {weight.tensor, bias.tensor, weight.accumulate(), bias.accumulate()};
  }
  struct NormInput {
    Tensor x, mean, rstd, weight;
  };
  static void norm_backward(Tensor dx, Tensor dy, Tensor dresidual, const NormGradients& g,
                            const NormInput& in, Stream& stream) {
    launch(LayerNormBackward{.dx = dx,
                             .dweight = g.weight,
                             .dbias = g.bias,
                             .dy = dy,
                             .x = in.x,
                             .mean = in.mean,
                             .rstd = in.rstd,
                             .weight = in.weight,
                             .dresidual = dresidual,
                             .accumulate_weight = g.accumulate_weight,
                             .accumulate_bias = g.accumulate_bias},
           stream);
  }
  static void add(ParamGradient& gradient, Tensor x, Stream& stream) {
    if (gradient.accumulate())
      launch(Axpy{.y = gradient.tensor, .x = x}, stream);
    else
      launch(Cast{.y = gradient.tensor, .x = x}, stream);
  }

  // Outputs of norms and of the activation function are cheap to make again, so a lean layer does not keep
  // them.
  Activations keep(const ForwardArgs& f, int64_t rows, DType t) const {
    const int64_t w = c_.width, all = axis_.all_rows(rows);
    Saved& s = f.saved;
    auto cheap = [&](Shape shape) { return f.lean ? f.scratch.take(t, shape) : s.keep(f.keep, t, shape); };
    Activations a;
    a.mean1 = s.keep(f.keep, DType::fp32, {rows});
    a.rstd1 = s.keep(f.keep, DType::fp32, {rows});
    a.attention = attention_.keep(s, f.keep, all, t);
    a.middle = s.keep(f.keep, t, {rows, w});
    a.mean2 = s.keep(f.keep, DType::fp32, {rows});
    a.rstd2 = s.keep(f.keep, DType::fp32, {rows});
    a.hidden = s.keep(f.keep, t, {all, mlp_});
    a.norm1 = cheap({rows, w}), a.norm2 = cheap({rows, w}), a.active = cheap({all, mlp_});
    return a;
  }
  Activations saved(const Saved& s, bool lean) const {
    int next = 0;
    Activations a;
    a.mean1 = s[next++], a.rstd1 = s[next++];
    a.attention = attention_.kept(s, next);
    a.middle = s[next++], a.mean2 = s[next++], a.rstd2 = s[next++], a.hidden = s[next++];
    if (!lean) a.norm1 = s[next++], a.norm2 = s[next++], a.active = s[next++];
    return a;
  }
  // The norms' parameters are there in the input's part of a backward only, so a split one keeps what they
  // give until the weights' part. Their statistics are written again, with the same bits.
  void norms_again(const BackwardArgs& a, Activations& s) const {
    auto norm = [&](Tensor x, Tensor mean, Tensor rstd, size_t first) {
      const Tensor y = a.for_weight ? a.for_weight->keep(*a.keep, x.dtype(), x.shape())
                                    : a.scratch.take(x.dtype(), x.shape());
      launch(LayerNormForward{.y = y,
                              .mean = mean,
                              .rstd = rstd,
                              .x = x,
                              .weight = a.params[first],
                              .bias = a.params[first + 1],
                              .eps = c_.norm_eps},
             a.stream);
      return y;
    };
    s.norm1 = norm(a.x, s.mean1, s.rstd1, 0);
    s.norm2 = norm(s.middle, s.mean2, s.rstd2, 6);
  }
  void active_again(const BackwardArgs& a, Activations& s) const {
    s.active = a.scratch.take(s.hidden.dtype(), s.hidden.shape());
    launch(ActivationForward{.y = s.active, .x = s.hidden, .kind = c_.activation}, a.stream);
  }

  void drop(Tensor y, Tensor x, const Position& p, const char* branch, Stream& s) const {
    RowDropout{c_.dropout, seq_, axes_}.run(y, x, p, fmt::format("{}.{}", name_, branch), s);
  }
  // The gradient through a branch's dropout; the residual keeps the undropped one, so this is a copy.
  Tensor dropped(Tensor dy, const BackwardArgs& a, const char* branch) const {
    if (c_.dropout == 0) return dy;
    const Tensor out = a.scratch.take(dy.dtype(), dy.shape());
    drop(out, dy, a.position, branch, a.stream);
    return out;
  }

  static Attention::Sizes attention_sizes(const GptConfig& c, int64_t seq, const TensorAxis& axis) {
    const int64_t heads = axis.mine(c.heads, "heads").size();
    return {.seq = seq, .heads = heads, .kv_heads = heads, .head_dim = c.width / c.heads};
  }

  GptConfig c_;
  int64_t seq_;
  std::string name_;
  Axes axes_;
  TensorAxis axis_;
  Attention attention_;
  int64_t columns_, mlp_;  // of this rank of the tensor axis: of its heads, and of the MLP
};

}  // namespace

std::unique_ptr<Layer> make_gpt_block(const GptConfig& config, int64_t seq, int index, const Axes& axes) {
  return std::make_unique<GptBlock>(config, seq, index, axes);
}

}  // namespace cleave
