#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "model/cut_linear.h"
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

void GptBlock::backward_input(const BackwardArgs& a, const Activations& s) const {
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
               all_dmlp = cut.backward_active(product.down, wide, s.hidden, dmlp, c_.activation, a.scratch);
  const Gathering norm2_of_all = both ? start_gather(s.norm2, a) : Gathering();
  const Event mlp_summed = cut.backward_summed(product.fc, narrow, partial, wide);
  if (both) {
    a.stream.wait(norm2_of_all.here);
    mlp_weights(a, s, {dmlp, all_dmlp, wide}, norm2_of_all.all);
  }
  a.stream.wait(mlp_summed);
  norm_backward(dmiddle, narrow, a.dy, norm2, {s.middle, s.mean2, s.rstd2, p[6]}, a.stream);
  const Tensor dattn = dropped(dmiddle, a, "attn"),
               all_dattn = cut.backward_gathered(product.out, dheads, dattn, a.scratch);
  const Gathering norm1_of_all = both ? start_gather(s.norm1, a) : Gathering();
  attention_.backward(dqkv, dheads, s.attention, {a.scratch, a.stream, name_});
  const Event qkv_summed = cut.backward_summed(product.qkv, narrow, partial, dqkv);
  if (both) {
    a.stream.wait(norm1_of_all.here);
    attention_weights(a, s, {dattn, all_dattn, dqkv}, norm1_of_all.all);
  }
  a.stream.wait(qkv_summed);
  norm_backward(a.dx, narrow, dmiddle, norm1, {a.x, s.mean1, s.rstd1, p[0]}, a.stream);
}

void GptBlock::mlp_weights(const BackwardArgs& a, const Activations& s, const Gradients& d,
                           Tensor all_norm2) const {
  const auto g = a.grads;
  Linear{.in = mlp_, .out = c_.width}.backward_weight({d.all_out, d.out}, s.active, g[10], &g[11], a.stream);
  Linear{.in = c_.width, .out = mlp_}.backward_weight(d.in, all_norm2, g[8], &g[9], a.stream);
}

void GptBlock::attention_weights(const BackwardArgs& a, const Activations& s, const Gradients& d,
                                 Tensor all_norm1) const {
  const auto g = a.grads;
  Linear{.in = columns_, .out = c_.width}.backward_weight({d.all_out, d.out}, s.attention.out, g[4], &g[5],
                                                          a.stream);
  Linear{.in = c_.width, .out = 3 * columns_}.backward_weight(d.in, all_norm1, g[2], &g[3], a.stream);
}

GptBlock::Gathering GptBlock::start_gather(Tensor local, const BackwardArgs& a) const {
  const Tensor all = axis_.all_rows_of(local, a.scratch);
  return {all, axis_.start_gather(all, local, a.stream, name_)};
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
