#include "model/llama_block.h"

#include <fmt/ranges.h>

#include "device/copy.h"
#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "model/joined.h"

namespace cleave {
namespace {

// Places in the unit. Biases come last, those of queries, keys and values before the output's.
enum { kNorm1, kQuery, kKey, kValue, kOut, kNorm2, kGate, kUp, kDown, kBiases };

}  // namespace

LlamaBlock::LlamaBlock(const LlamaConfig& config, const Axes& axes, int64_t seq, int index)
    : c_(config),
      seq_(seq),
      axis_(axes.tensor),
      share_(share_of(c_, axis_)),
      attention_({.seq = seq, .heads = share_.heads, .kv_heads = share_.kv_heads, .head_dim = c_.head_dim},
                 axes.sequence),
      name_(fmt::format("model.layers.{}", index)) {}

LlamaBlock::Share LlamaBlock::share_of(const LlamaConfig& c, const TensorAxis& axis) {
  const int64_t ranks = axis.size();
  Share share{.heads = axis.mine(c.heads, "heads").size(),
              .kv_heads = c.kv_heads / ranks,
              .mlp_width = axis.mine(c.mlp_width, "columns of the MLP").size()};
  if (c.kv_heads % ranks == 0) return share;
  if (ranks % c.kv_heads != 0) {
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= c.heads; ++n)
      if (c.heads % n == 0 && (c.kv_heads % n == 0 || n % c.kv_heads == 0)) sizes.push_back(n);
    fail(
        Exit::usage,
        "{} key/value heads of {} heads cannot be shared by {} tensor ranks; tensor_parallel.autotp_size may "
        "be {}",
        c.kv_heads, c.heads, ranks, fmt::join(sizes, ", "));
  }
  share.kv_heads = 1, share.whole_kv = true;
  share.kv_rows = Range{0, c.head_dim}.shifted(axis.rank() * c.kv_heads / ranks * c.head_dim);
  return share;
}

std::vector<UnitSpec> LlamaBlock::units() const {
  const int64_t w = c_.width, q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim, mlp = c_.mlp_width;
  const Init one{Init::Kind::ones, 0}, zero{}, normal{Init::Kind::normal, c_.init_scale};
  const std::string attention = name_ + ".self_attn.", gated = name_ + ".mlp.";
  auto cut_kv = [&](ParamSpec p) {
    p.partial = share_.whole_kv;
    return share_.whole_kv ? p : axis_.cut(p, 0);
  };
  UnitSpec unit{name_,
                {{name_ + ".input_layernorm.weight", {w}, one, false},
                 axis_.cut({attention + "q_proj.weight", {q, w}, normal, true}, 0),
                 cut_kv({attention + "k_proj.weight", {kv, w}, normal, true}),
                 cut_kv({attention + "v_proj.weight", {kv, w}, normal, true}),
                 axis_.cut({attention + "o_proj.weight", {w, q}, normal, true}, 1),
                 {name_ + ".post_attention_layernorm.weight", {w}, one, false},
                 axis_.cut({gated + "gate_proj.weight", {mlp, w}, normal, true}, 0),
                 axis_.cut({gated + "up_proj.weight", {mlp, w}, normal, true}, 0),
                 axis_.cut({gated + "down_proj.weight", {w, mlp}, normal, true}, 1)}};
  auto bias = [&](const char* of, int64_t n) {
    return ParamSpec{attention + of + ".bias", {n}, zero, false};
  };
  if (c_.qkv_bias) {
    unit.params.push_back(axis_.cut(bias("q_proj", q), 0));
    for (const char* of : {"k_proj", "v_proj"}) unit.params.push_back(cut_kv(bias(of, kv)));
  }
  if (c_.output_bias) unit.params.push_back(bias("o_proj", w));
  return {unit};
}

LlamaBlock::Products LlamaBlock::products(std::span<const Tensor> p) const {
  const int64_t w = c_.width, q = attention_.width(), mlp = share_.mlp_width;
  return {.out = {q, w, p[kOut], c_.output_bias && axis_.rank() == 0 ? p.back() : Tensor()},  // summed: once
          .gate_up = {w, 2 * mlp, joined(p.subspan(kGate, 2)), {}},
          .down = {mlp, w, p[kDown], {}}};
}

Tensor LlamaBlock::together(std::span<const Tensor> three, Arena& scratch, Stream& stream) const {
  if (!share_.whole_kv) return joined(three);
  Shape shape = three[0].shape();
  shape.dims[0] = attention_.qkv_width();
  const Tensor all = scratch.take(three[0].dtype(), shape);
  int64_t row = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Tensor mine = i == 0 ? three[i] : three[i].rows(share_.kv_rows);
    copy(all.rows({row, row + mine.dim(0)}), mine, stream);
    row += mine.dim(0);
  }
  return all;
}

Linear LlamaBlock::projection(std::span<const Tensor> p, Arena& scratch, Stream& stream) const {
  return {c_.width, attention_.qkv_width(), together(p.subspan(kQuery, 3), scratch, stream),
          c_.qkv_bias ? together(p.subspan(kBiases, 3), scratch, stream) : Tensor()};
}

// `gradient` is of queries, keys and values one below the other, as together() has their parameters.
void LlamaBlock::add_apart(std::span<ParamGradient> three, Tensor gradient, Stream& stream) const {
  int64_t row = 0;
  for (size_t i = 0; i < 3; ++i) {
    const bool added = three[i].accumulate();
    Tensor to = three[i].tensor;
    if (i > 0 && !added) launch(Fill{.y = to}, stream);
    if (i > 0) to = to.rows(share_.kv_rows);
    const Tensor from = gradient.rows({row, row + to.dim(0)});
    if (added)
      launch(Axpy{.y = to, .x = from}, stream);
    else
      launch(Cast{.y = to, .x = from}, stream);
    row += to.dim(0);
  }
}

void LlamaBlock::projection_weights(const BackwardArgs& a, Tensor dqkv, Tensor x) const {
  const Linear product{.in = c_.width, .out = attention_.qkv_width()};
  const auto weights = a.grads.subspan(kQuery, 3);
  const auto biases = c_.qkv_bias ? a.grads.subspan(kBiases, 3) : std::span<ParamGradient>();
  if (!share_.whole_kv) {
    ParamGradient dweight = joined(weights), dbias;
    if (c_.qkv_bias) dbias = joined(biases);
    return product.backward_weight(dqkv, x, dweight, c_.qkv_bias ? &dbias : nullptr, a.stream);
  }
  bool written[2] = {false, false};
  ParamGradient dweight{a.scratch.take(DType::fp32, {attention_.qkv_width(), c_.width}), &written[0]};
  ParamGradient dbias{a.scratch.take(DType::fp32, {attention_.qkv_width()}), &written[1]};
  product.backward_weight(dqkv, x, dweight, c_.qkv_bias ? &dbias : nullptr, a.stream);
  add_apart(weights, dweight.tensor, a.stream);
  if (c_.qkv_bias) add_apart(biases, dbias.tensor, a.stream);
}

// Outputs of norms and of the gated unit are cheap to make again, so a lean layer does not keep them.
LlamaBlock::Activations LlamaBlock::keep(const ForwardArgs& f, int64_t rows, DType t) const {
  const int64_t w = c_.width, mlp = share_.mlp_width, all = axis_.all_rows(rows);
  Saved& s = f.saved;
  auto cheap = [&](Shape shape) { return f.lean ? f.scratch.take(t, shape) : s.keep(f.keep, t, shape); };
  Activations a;
  a.rstd1 = s.keep(f.keep, DType::fp32, {rows});
  a.attention = attention_.keep(s, f.keep, all, t);
  a.middle = s.keep(f.keep, t, {rows, w});
  a.rstd2 = s.keep(f.keep, DType::fp32, {rows});
  a.gate_up = s.keep(f.keep, t, {all, 2 * mlp});
  a.norm1 = cheap({rows, w}), a.norm2 = cheap({rows, w}), a.gated = cheap({all, mlp});
  return a;
}

LlamaBlock::Activations LlamaBlock::saved(const Saved& s, bool lean) const {
  int next = 0;
  Activations a;
  a.rstd1 = s[next++];
  a.attention = attention_.kept(s, next);
  a.middle = s[next++], a.rstd2 = s[next++], a.gate_up = s[next++];
  if (!lean) a.norm1 = s[next++], a.norm2 = s[next++], a.gated = s[next++];
  return a;
}

// The statistics are written again, with the same bits.
Tensor LlamaBlock::norm_again(const BackwardArgs& a, Tensor x, Tensor rstd, size_t weight) const {
  const Tensor y = a.scratch.take(x.dtype(), x.shape());
  launch(RmsNormForward{.y = y, .rstd = rstd, .x = x, .weight = a.params[weight], .eps = c_.norm_eps},
         a.stream);
  return y;
}

std::span<const Tensor> LlamaBlock::rotation(std::span<const Tensor> constants) const {
  CHECK(constants.size() == 2, "{}: wanted the model's cosines and sines, got {} constants", name_,
        constants.size());
  return constants;
}

void LlamaBlock::forward(const ForwardArgs& a) const {
  const int64_t rows = a.x.dim(0);
  const auto p = a.params;
  const Products product = products(p);
  const Activations s = keep(a, rows, a.x.dtype());
  launch(RmsNormForward{.y = s.norm1, .rstd = s.rstd1, .x = a.x, .weight = p[kNorm1], .eps = c_.norm_eps},
         a.stream);
  const Tensor qkv = attention_.input(s.attention, a.scratch);
  const CutLinear cut{axis_, a.stream, name_};
  cut.forward_gathered(projection(p, a.scratch, a.stream), qkv, s.norm1, a.scratch);
  attention_.forward(s.attention, qkv, {a.scratch, a.stream, name_, rotation(a.constants)});
  const Tensor branch = a.scratch.take(a.x.dtype(), {rows, c_.width});
  const Tensor partial = axis_.all_rows_of(branch, a.scratch);
  cut.forward_summed(product.out, branch, partial, s.attention.out);
  launch(RmsNormForward{.y = s.norm2,
                        .sum = s.middle,
                        .rstd = s.rstd2,
                        .x = branch,
                        .residual = a.x,
                        .weight = p[kNorm2],
                        .eps = c_.norm_eps},
         a.stream);
  cut.forward_gathered(product.gate_up, s.gate_up, s.norm2, a.scratch);
  launch(SwiGluForward{.y = s.gated, .x = s.gate_up}, a.stream);
  cut.forward_summed(product.down, branch, partial, s.gated);
  launch(Add{.y = a.y, .a = s.middle, .b = branch}, a.stream);
}

void LlamaBlock::backward(const BackwardArgs& a) const {
  const Shape shape{a.x.dim(0), c_.width};
  const Tensor dnorm = a.scratch.take(a.x.dtype(), shape), dmiddle = a.scratch.take(a.x.dtype(), shape);
  Activations s = saved(a.saved, a.lean);
  const auto g = a.grads;
  const int64_t mark = a.scratch.mark();  // the two halves use the same scratch, one after the other
  if (a.lean) {
    s.norm2 = norm_again(a, s.middle, s.rstd2, kNorm2);
    s.gated = a.scratch.take(s.gate_up.dtype(), {s.gate_up.dim(0), share_.mlp_width});
    launch(SwiGluForward{.y = s.gated, .x = s.gate_up}, a.stream);
  }
  backward_mlp(a, s, dnorm);
  launch(RmsNormBackward{.dx = dmiddle,
                         .dweight = g[kNorm2].tensor,
                         .dy = dnorm,
                         .x = s.middle,
                         .rstd = s.rstd2,
                         .weight = a.params[kNorm2],
                         .dresidual = a.dy,
                         .accumulate = g[kNorm2].accumulate()},
         a.stream);
  a.scratch.release(mark);
  if (a.lean) s.norm1 = norm_again(a, a.x, s.rstd1, kNorm1);
  backward_attention(a, s, dmiddle, dnorm);
  launch(RmsNormBackward{.dx = a.dx,
                         .dweight = g[kNorm1].tensor,
                         .dy = dnorm,
                         .x = a.x,
                         .rstd = s.rstd1,
                         .weight = a.params[kNorm1],
                         .dresidual = dmiddle,
                         .accumulate = g[kNorm1].accumulate()},
         a.stream);
}

// dnorm: the gradient of norm2. In both halves the weights' gradients run while it is summed.
void LlamaBlock::backward_mlp(const BackwardArgs& a, const Activations& s, Tensor dnorm) const {
  const Products product = products(a.params);
  const Tensor dgated = a.scratch.take(s.gated.dtype(), s.gated.shape());
  const Tensor dgate_up = a.scratch.take(s.gate_up.dtype(), s.gate_up.shape());
  ParamGradient dweight = joined(a.grads.subspan(kGate, 2));
  const CutLinear cut{axis_, a.stream, name_};
  const Tensor all_dy = cut.backward_gathered(product.down, dgated, a.dy, a.scratch);
  const Tensor all_norm = axis_.all_rows_of(s.norm2, a.scratch);
  const Event gathered = axis_.start_gather(all_norm, s.norm2, a.stream, name_);
  launch(SwiGluBackward{.dx = dgate_up, .dy = dgated, .x = s.gate_up}, a.stream);
  const Tensor partial = axis_.all_rows_of(dnorm, a.scratch);
  const Event summed = cut.backward_summed(product.gate_up, dnorm, partial, dgate_up);
  product.down.backward_weight(all_dy, s.gated, a.grads[kDown], nullptr, a.stream);
  a.stream.wait(gathered);
  product.gate_up.backward_weight(dgate_up, all_norm, dweight, nullptr, a.stream);
  a.stream.wait(summed);
}

// dnorm: the gradient of norm1.
void LlamaBlock::backward_attention(const BackwardArgs& a, const Activations& s, Tensor dmiddle,
                                    Tensor dnorm) const {
  const Products product = products(a.params);
  const Tensor out = s.attention.out, dattention = a.scratch.take(out.dtype(), out.shape());
  const Tensor dqkv = a.scratch.take(out.dtype(), {out.dim(0), attention_.qkv_width()});
  const CutLinear cut{axis_, a.stream, name_};
  const Tensor all_dmiddle = cut.backward_gathered(product.out, dattention, dmiddle, a.scratch);
  const Tensor all_norm = axis_.all_rows_of(s.norm1, a.scratch);
  const Event gathered = axis_.start_gather(all_norm, s.norm1, a.stream, name_);
  attention_.backward(dqkv, dattention, s.attention, {a.scratch, a.stream, name_, rotation(a.constants)});
  const Tensor partial = axis_.all_rows_of(dnorm, a.scratch);
  const Event summed = cut.backward_summed(projection(a.params, a.scratch, a.stream), dnorm, partial, dqkv);
  product.out.backward_weight({all_dmiddle, dmiddle}, out, a.grads[kOut],
                              c_.output_bias ? &a.grads.back() : nullptr, a.stream);
  a.stream.wait(gathered);
  projection_weights(a, dqkv, all_norm);
  a.stream.wait(summed);
}

}  // namespace cleave
