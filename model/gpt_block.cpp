#include "model/gpt_block.h"

#include <cmath>

#include "kernels/norm.h"
#include "model/cut_linear.h"
#include "model/row_dropout.h"

namespace cleave {
namespace {

Attention::Sizes attention_sizes(const GptConfig& c, int64_t seq, const TensorAxis& axis) {
  const int64_t heads = axis.mine(c.heads, "heads").size();
  return {.seq = seq, .heads = heads, .kv_heads = heads, .head_dim = c.width / c.heads};
}

}  // namespace

GptBlock::GptBlock(const GptConfig& c, int64_t seq, int index, const Axes& axes)
    : c_(c),
      seq_(seq),
      name_(fmt::format("h.{}", index)),
      axes_(axes),
      axis_(axes.tensor),
      attention_(attention_sizes(c, seq, axis_), axes.sequence),
      columns_(attention_.width()),
      mlp_(axis_.mine(4 * c.width, "columns of the MLP").size()) {}

std::vector<UnitSpec> GptBlock::units() const {
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

GptBlock::Products GptBlock::products(std::span<const Tensor> p) const {
  const int64_t w = c_.width;
  auto summed = [&](const Tensor& bias) { return axis_.rank() == 0 ? bias : Tensor(); };  // once
  return {.qkv = {w, 3 * columns_, p[2], p[3]},
          .out = {columns_, w, p[4], summed(p[5])},
          .fc = {w, mlp_, p[8], p[9]},
          .down = {mlp_, w, p[10], summed(p[11])}};
}

Tensor GptBlock::gathered(Tensor local, Arena& scratch, Stream& stream) const {
  const Tensor all = axis_.all_rows_of(local, scratch);
  axis_.gather(all, local, stream, name_);
  return all;
}

GptBlock::Activations GptBlock::keep(const ForwardArgs& f, int64_t rows, DType t) const {
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

GptBlock::Activations GptBlock::saved(const Saved& s, bool lean) const {
  int next = 0;
  Activations a;
  a.mean1 = s[next++], a.rstd1 = s[next++];
  a.attention = attention_.kept(s, next);
  a.middle = s[next++], a.mean2 = s[next++], a.rstd2 = s[next++], a.hidden = s[next++];
  if (!lean) a.norm1 = s[next++], a.norm2 = s[next++], a.active = s[next++];
  return a;
}

void GptBlock::drop(Tensor y, Tensor x, const Position& p, const char* branch, Stream& s) const {
  RowDropout{c_.dropout, seq_, axes_}.run(y, x, p, fmt::format("{}.{}", name_, branch), s);
}

void GptBlock::forward(const ForwardArgs& a) const {
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
  const CutLinear cut{axis_, a.stream, name_};
  const Tensor qkv = attention_.input(s.attention, a.scratch);
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
  cut.forward_active(product.fc, s.active, s.hidden, s.norm2, c_.activation, a.scratch);
  cut.forward_summed(product.down, branch, partial, s.active);
  if (a.train) drop(branch, branch, a.position, "mlp", a.stream);
  launch(Add{.y = a.y, .a = s.middle, .b = branch}, a.stream);
}

}  // namespace cleave
