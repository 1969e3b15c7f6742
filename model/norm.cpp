#include "model/norm.h"

#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace cleave::model {

Norm::Norm(Kind kind, const std::string& name, int64_t width, float eps) : kind_(kind), eps_(eps) {
  weight_ = Parameter({name + ".weight", {width}, {Init::Kind::ones, 0}, false});
  if (kind == Kind::layer) bias_ = Parameter({name + ".bias", {width}, {}, false});
}

void Norm::declare(DeclaredUnit& unit) { unit.add(weight_), unit.add(bias_); }

void Norm::sum_gradients_over_ranks() {
  for (Parameter* p : {&weight_, &bias_}) {
    ParamSpec spec = p->spec();
    spec.partial = true;
    if (*p) *p = Parameter(spec);
  }
}

Norm::Kept Norm::keep(Arena& arena, int64_t rows) const {
  Kept kept;
  if (kind_ == Kind::layer) kept.mean = arena.take(DType::fp32, {rows});
  kept.rstd = arena.take(DType::fp32, {rows});
  return kept;
}

void Norm::forward(Tensor y, const Rows& rows, const Kept& kept, std::span<const Tensor> params,
                   Stream& stream) const {
  if (kind_ == Kind::layer)
    kernels::launch(kernels::LayerNormForward{.y = y,
                                              .sum = rows.sum,
                                              .mean = kept.mean,
                                              .rstd = kept.rstd,
                                              .x = rows.x,
                                              .residual = rows.residual,
                                              .weight = weight_.in(params),
                                              .bias = bias_.in(params),
                                              .eps = eps_},
                    stream);
  else
    kernels::launch(kernels::RmsNormForward{.y = y,
                                            .sum = rows.sum,
                                            .rstd = kept.rstd,
                                            .x = rows.x,
                                            .residual = rows.residual,
                                            .weight = weight_.in(params),
                                            .eps = eps_},
                    stream);
}

Norm::Gradients Norm::gradients(const BackwardArgs& a) const {
  Gradients g;
  const bool later = a.part == BackwardPart::input;
  ParamGradient* weight = weight_.in(a.grads);
  if (later || !weight->wanted()) {  // of a frozen unit they are nobody's
    Arena& arena = later ? *a.keep : a.scratch;
    g.weight = arena.take(DType::fp32, {weight_.spec().numel()});
    if (bias_) g.bias = arena.take(DType::fp32, {bias_.spec().numel()});
    return g;
  }
  ParamGradient* bias = bias_.in(a.grads);
  g.weight = weight->tensor, g.accumulate_weight = weight->accumulate();
  if (bias) g.bias = bias->tensor, g.accumulate_bias = bias->accumulate();
  return g;
}

void Norm::add(const Gradients& kept, std::span<ParamGradient> grads, Stream& stream) const {
  const auto add_to = [&](ParamGradient* gradient, Tensor x) {
    if (!gradient || !gradient->wanted()) return;
    if (gradient->accumulate())
      kernels::launch(kernels::Axpy{.y = gradient->tensor, .x = x}, stream);
    else
      kernels::launch(kernels::Cast{.y = gradient->tensor, .x = x}, stream);
  };
  add_to(weight_.in(grads), kept.weight), add_to(bias_.in(grads), kept.bias);
}

void Norm::backward(const Back& b, const Kept& kept, std::span<const Tensor> params, const Gradients& g,
                    Stream& stream) const {
  if (kind_ == Kind::layer)
    kernels::launch(kernels::LayerNormBackward{.dx = b.dx,
                                               .dweight = g.weight,
                                               .dbias = g.bias,
                                               .dy = b.dy,
                                               .x = b.x,
                                               .mean = kept.mean,
                                               .rstd = kept.rstd,
                                               .weight = weight_.in(params),
                                               .dresidual = b.dresidual,
                                               .accumulate_weight = g.accumulate_weight,
                                               .accumulate_bias = g.accumulate_bias},
                    stream);
  else
    kernels::launch(kernels::RmsNormBackward{.dx = b.dx,
                                             .dweight = g.weight,
                                             .dy = b.dy,
                                             .x = b.x,
                                             .rstd = kept.rstd,
                                             .weight = weight_.in(params),
                                             .dresidual = b.dresidual,
                                             .accumulate = g.accumulate_weight},
                    stream);
}

}  // namespace cleave::model
