#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "model/gpt_block.h"

namespace cleave {
namespace {

void add(ParamGradient& gradient, Tensor x, Stream& stream) {
  if (gradient.accumulate())
    launch(Axpy{.y = gradient.tensor, .x = x}, stream);
  else
    launch(Cast{.y = gradient.tensor, .x = x}, stream);
}

}  // namespace

void GptBlock::backward(const BackwardArgs& a) const {
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
  const Tensor dmlp = dropped(a.dy, a, "mlp"), dattention = dropped(kept[1], a, "attn");
  backward_weight(a, s,
                  {.mlp = dmlp,
                   .all_mlp = gathered(dmlp, a.scratch, a.stream),
                   .hidden = kept[0],
                   .attention = dattention,
                   .all_attention = gathered(dattention, a.scratch, a.stream),
                   .qkv = kept[2]});
  for (int norm : {0, 1})
    for (int i : {0, 1}) add(a.grads[size_t(6 * norm + i)], kept[3 + 2 * norm + i], a.stream);
}

GptBlock::Gradients GptBlock::backward_input(const BackwardArgs& a, const Activations& s) const {
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
  const Tensor dmlp = dropped(a.dy, a, "mlp"), all_dmlp = gathered(dmlp, a.scratch, a.stream);
  product.down.backward_active(wide, all_dmlp, s.hidden, c_.activation, a.stream);
  product.fc.backward_input(partial, wide, a.stream);
  axis_.sum(narrow, partial, a.stream, name_);
  norm_backward(dmiddle, narrow, a.dy, norm2, {s.middle, s.mean2, s.rstd2, p[6]}, a.stream);
  const Tensor dattn = dropped(dmiddle, a, "attn"), all_dattn = gathered(dattn, a.scratch, a.stream);
  product.out.backward_input(dheads, all_dattn, a.stream);
  attention_.backward(dqkv, dheads, s.attention, {a.scratch, a.stream, name_});
  product.qkv.backward_input(partial, dqkv, a.stream);
  axis_.sum(narrow, partial, a.stream, name_);
  norm_backward(a.dx, narrow, dmiddle, norm1, {a.x, s.mean1, s.rstd1, p[0]}, a.stream);
  return {.mlp = dmlp,
          .all_mlp = all_dmlp,
          .hidden = wide,
          .attention = dattn,
          .all_attention = all_dattn,
          .qkv = dqkv};
}

void GptBlock::backward_weight(const BackwardArgs& a, const Activations& s, const Gradients& d) const {
  const int64_t w = c_.width;
  const auto g = a.grads;
  Linear{.in = mlp_, .out = w}.backward_weight({d.all_mlp, d.mlp}, s.active, g[10], &g[11], a.stream);
  Linear{.in = w, .out = mlp_}.backward_weight(d.hidden, gathered(s.norm2, a.scratch, a.stream), g[8], &g[9],
                                               a.stream);
  Linear{.in = columns_, .out = w}.backward_weight({d.all_attention, d.attention}, s.attention.out, g[4],
                                                   &g[5], a.stream);
  Linear{.in = w, .out = 3 * columns_}.backward_weight(d.qkv, gathered(s.norm1, a.scratch, a.stream), g[2],
                                                       &g[3], a.stream);
}

GptBlock::NormGradients GptBlock::norm_gradients(const BackwardArgs& a, size_t first) const {
  if (a.for_weight) {
    const Tensor weight = a.for_weight->keep(*a.keep, DType::fp32, {c_.width});
    return {weight, a.for_weight->keep(*a.keep, DType::fp32, {c_.width})};
  }
  ParamGradient &weight = a.grads[first], &bias = a.grads[first + 1];
  return {weight.tensor, bias.tensor, weight.accumulate(), bias.accumulate()};
}

void GptBlock::norm_backward(Tensor dx, Tensor dy, Tensor dresidual, const NormGradients& g,
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

void GptBlock::norms_again(const BackwardArgs& a, Activations& s) const {
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

void GptBlock::active_again(const BackwardArgs& a, Activations& s) const {
  s.active = a.scratch.take(s.hidden.dtype(), s.hidden.shape());
  launch(ActivationForward{.y = s.active, .x = s.hidden, .kind = c_.activation}, a.stream);
}

Tensor GptBlock::dropped(Tensor dy, const BackwardArgs& a, const char* branch) const {
  if (c_.dropout == 0) return dy;
  const Tensor out = a.scratch.take(dy.dtype(), dy.shape());
  drop(out, dy, a.position, branch, a.stream);
  return out;
}

}  // namespace cleave
