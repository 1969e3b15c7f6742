#include "model/gpt_block.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "model/linear.h"

namespace cleave {
namespace {

class GptBlock final : public Layer {
 public:
  GptBlock(const GptConfig& c, int64_t seq, int index)
      : c_(c), seq_(seq), name_(fmt::format("h.{}", index)) {}

  std::vector<UnitSpec> units() const override {
    const int64_t w = c_.width;
    const Init one{Init::Kind::ones, 0}, zero{}, normal{Init::Kind::normal, 0.02f};
    // Residual projections start smaller, as in the GPT-2 report: 0.02 / sqrt(2 * layers).
    const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * float(c_.layers))};
    return {{name_,
             {{name_ + ".ln_1.weight", {w}, one, false},
              {name_ + ".ln_1.bias", {w}, zero, false},
              {name_ + ".attn.c_attn.weight", {3 * w, w}, normal, true},
              {name_ + ".attn.c_attn.bias", {3 * w}, zero, false},
              {name_ + ".attn.c_proj.weight", {w, w}, residual, true},
              {name_ + ".attn.c_proj.bias", {w}, zero, false},
              {name_ + ".ln_2.weight", {w}, one, false},
              {name_ + ".ln_2.bias", {w}, zero, false},
              {name_ + ".mlp.c_fc.weight", {4 * w, w}, normal, true},
              {name_ + ".mlp.c_fc.bias", {4 * w}, zero, false},
              {name_ + ".mlp.c_proj.weight", {w, 4 * w}, residual, true},
              {name_ + ".mlp.c_proj.bias", {w}, zero, false}}}};
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
    Linear{w, 3 * w, p[2], p[3]}.forward(s.qkv, s.norm1, a.stream);
    launch(AttentionForward{.y = s.attention,
                            .lse = s.lse,
                            .qkv = s.qkv,
                            .batch = rows / seq_,
                            .seq = seq_,
                            .heads = c_.heads,
                            .kv_heads = c_.heads,
                            .head_dim = w / c_.heads},
           a.stream);
    const Tensor branch = a.scratch.take(t, {rows, w});
    Linear{w, w, p[4], p[5]}.forward(branch, s.attention, a.stream);
    if (a.train) drop(branch, a.position, "attn", a.stream);
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
    Linear{w, 4 * w, p[8], p[9]}.forward(s.hidden, s.norm2, a.stream);
    launch(ActivationForward{.y = s.active, .x = s.hidden, .kind = c_.activation}, a.stream);
    Linear{4 * w, w, p[10], p[11]}.forward(branch, s.active, a.stream);
    if (a.train) drop(branch, a.position, "mlp", a.stream);
    launch(Add{.y = a.y, .a = s.middle, .b = branch}, a.stream);
  }

  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& a) const override {
    Activations s = saved(a.saved, a.lean);
    if (a.part != BackwardPart::weight) {
      const Gradients d = backward_input(a, s);
      if (a.lean) norms_again(a, s);
      if (a.lean && a.part == BackwardPart::both) active_again(a, s);
      if (a.part == BackwardPart::both) backward_weight(a, s, d);
      return;
    }
    const Saved& kept = *a.for_weight;
    if (a.lean) s.norm1 = kept[7], s.norm2 = kept[8], active_again(a, s);
    backward_weight(a, s,
                    {.mlp = dropped(a.dy, a, "mlp"),
                     .hidden = kept[0],
                     .attention = dropped(kept[1], a, "attn"),
                     .qkv = kept[2]});
    for (int norm : {0, 1})
      for (int i : {0, 1}) add(a.grads[size_t(6 * norm + i)], kept[3 + 2 * norm + i], a.stream);
  }

 private:
  struct Activations {
    Tensor mean1, rstd1, norm1, qkv, attention, lse, middle, mean2, rstd2, norm2, hidden, active;
  };
  // Of the outputs of the four dense layers: all that their weights' gradients need besides activations.
  struct Gradients {
    Tensor mlp, hidden, attention, qkv;
  };

  Gradients backward_input(const BackwardArgs& a, const Activations& s) const {
    const int64_t rows = a.x.dim(0), w = c_.width;
    const DType t = a.x.dtype();
    const auto p = a.params;
    auto take = [&](int64_t columns) {  // lives until the weights' part
      const Shape shape{rows, columns};
      return a.for_weight ? a.for_weight->keep(*a.keep, t, shape) : a.scratch.take(t, shape);
    };
    const Tensor wide = take(4 * w), dmiddle = take(w), dqkv = take(3 * w),
                 narrow = a.scratch.take(t, {rows, w});
    const NormGradients norm1 = norm_gradients(a, 0), norm2 = norm_gradients(a, 6);
    const Tensor dmlp = dropped(a.dy, a, "mlp");
    Linear{4 * w, w, p[10], p[11]}.backward_input(wide, dmlp, a.stream);
    launch(ActivationBackward{.dx = wide, .dy = wide, .x = s.hidden, .kind = c_.activation}, a.stream);
    Linear{w, 4 * w, p[8], p[9]}.backward_input(narrow, wide, a.stream);
    launch(LayerNormBackward{.dx = dmiddle,
                             .dweight = norm2.weight,
                             .dbias = norm2.bias,
                             .dy = narrow,
                             .x = s.middle,
                             .mean = s.mean2,
                             .rstd = s.rstd2,
                             .weight = p[6],
                             .dresidual = a.dy,
                             .accumulate_weight = norm2.accumulate_weight,
                             .accumulate_bias = norm2.accumulate_bias},
           a.stream);
    const Tensor dattn = dropped(dmiddle, a, "attn");
    Linear{w, w, p[4], p[5]}.backward_input(narrow, dattn, a.stream);
    launch(AttentionBackward{.dqkv = dqkv,
                             .dy = narrow,
                             .y = s.attention,
                             .lse = s.lse,
                             .qkv = s.qkv,
                             .batch = rows / seq_,
                             .seq = seq_,
                             .heads = c_.heads,
                             .kv_heads = c_.heads,
                             .head_dim = w / c_.heads},
           a.stream);
    Linear{w, 3 * w, p[2], p[3]}.backward_input(narrow, dqkv, a.stream);
    launch(LayerNormBackward{.dx = a.dx,
                             .dweight = norm1.weight,
                             .dbias = norm1.bias,
                             .dy = narrow,
                             .x = a.x,
                             .mean = s.mean1,
                             .rstd = s.rstd1,
                             .weight = p[0],
                             .dresidual = dmiddle,
                             .accumulate_weight = norm1.accumulate_weight,
                             .accumulate_bias = norm1.accumulate_bias},
           a.stream);
    return {.mlp = dmlp, .hidden = wide, .attention = dattn, .qkv = dqkv};
  }

  void backward_weight(const BackwardArgs& a, const Activations& s, const Gradients& d) const {
    const int64_t w = c_.width;
    const auto g = a.grads;
    Linear{.in = 4 * w, .out = w}.backward_weight(d.mlp, s.active, g[10], &g[11], a.stream);
    Linear{.in = w, .out = 4 * w}.backward_weight(d.hidden, s.norm2, g[8], &g[9], a.stream);
    Linear{.in = w, .out = w}.backward_weight(d.attention, s.attention, g[4], &g[5], a.stream);
    Linear{.in = w, .out = 3 * w}.backward_weight(d.qkv, s.norm1, g[2], &g[3], a.stream);
  }

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
  static void add(ParamGradient& gradient, Tensor x, Stream& stream) {
    if (gradient.accumulate())
      launch(Axpy{.y = gradient.tensor, .x = x}, stream);
    else
      launch(Cast{.y = gradient.tensor, .x = x}, stream);
  }

  // Outputs of norms and of the activation function are cheap to make again, so a lean layer does not keep
  // them.
  Activations keep(const ForwardArgs& f, int64_t rows, DType t) const {
    const int64_t w = c_.width;
    Saved& s = f.saved;
    auto cheap = [&](int64_t columns) {
      return f.lean ? f.scratch.take(t, {rows, columns}) : s.keep(f.keep, t, {rows, columns});
    };
    Activations a;
    a.mean1 = s.keep(f.keep, DType::fp32, {rows});
    a.rstd1 = s.keep(f.keep, DType::fp32, {rows});
    a.qkv = s.keep(f.keep, t, {rows, 3 * w});
    a.attention = s.keep(f.keep, t, {rows, w});
    a.lse = s.keep(f.keep, DType::fp32, {rows / seq_, c_.heads, seq_});
    a.middle = s.keep(f.keep, t, {rows, w});
    a.mean2 = s.keep(f.keep, DType::fp32, {rows});
    a.rstd2 = s.keep(f.keep, DType::fp32, {rows});
    a.hidden = s.keep(f.keep, t, {rows, 4 * w});
    a.norm1 = cheap(w), a.norm2 = cheap(w), a.active = cheap(4 * w);
    return a;
  }
  static Activations saved(const Saved& s, bool lean) {
    Activations a{.mean1 = s[0],
                  .rstd1 = s[1],
                  .norm1 = {},
                  .qkv = s[2],
                  .attention = s[3],
                  .lse = s[4],
                  .middle = s[5],
                  .mean2 = s[6],
                  .rstd2 = s[7],
                  .norm2 = {},
                  .hidden = s[8],
                  .active = {}};
    if (!lean) a.norm1 = s[9], a.norm2 = s[10], a.active = s[11];
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

  Dropout dropout(Tensor y, Tensor x, const Position& p, const char* branch) const {
    return {.y = y,
            .x = x,
            .p = c_.dropout,
            .philox = dropout_stream(p, fmt::format("{}.{}", name_, branch)),
            .offset = p.first_sample * seq_ * c_.width};
  }
  void drop(Tensor x, const Position& p, const char* branch, Stream& s) const {
    if (c_.dropout > 0) launch(dropout(x, x, p, branch), s);
  }
  // The gradient through a branch's dropout; the residual keeps the undropped one, so this is a copy.
  Tensor dropped(Tensor dy, const BackwardArgs& a, const char* branch) const {
    if (c_.dropout == 0) return dy;
    const Tensor out = a.scratch.take(dy.dtype(), dy.shape());
    launch(dropout(out, dy, a.position, branch), a.stream);
    return out;
  }

  GptConfig c_;
  int64_t seq_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Layer> make_gpt_block(const GptConfig& config, int64_t seq, int index) {
  return std::make_unique<GptBlock>(config, seq, index);
}

}  // namespace cleave
