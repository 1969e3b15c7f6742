#include "model/norm.h"

#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace cleave::model {

Norm::Norm(Kind kind, const std::string& name, int64_t width, float eps, float offset)
    : kind_(kind), eps_(eps), offset_(offset) {
  CHECK(offset == 0 || (kind == Kind::rms && offset == 1), "{}: an offset of {} is not supported", name,
        offset);
  const Init init{offset == 0 ? Init::Kind::ones : Init::Kind::zeros, 0};
  weight_ = Parameter({name + ".weight", {width}, init, false});
  if (kind == Kind::layer) bias_ = Parameter({name + ".bias", {width}, {}, false});
}

void Norm::declare(DeclaredUnit& unit) { unit.add(weight_), unit.add(bias_); }

void Norm::sum_gradients_over_ranks() {
  for (Parameter* p : {&weight_, &bias_}) {
    ParamSpec spec = p->spec();
    spec.cuts.push_back({Axis::tensor});
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
                                            .eps = eps_,
                                            .offset = offset_},
                    stream);
}

Norm::Gradients Norm::gradients(const BackwardArgs& a) const {
  Gradients g;
  const bool later = a.part == BackwardPart::input;
  const auto place = [&](const Parameter& p, Tensor& to, bool& accumulate) {
    if (!p) return;
    if (later || !p.in(a.grads)->wanted()) {  // discarded for a frozen unit
      to = (later ? *a.keep : a.scratch).take(DType::fp32, {p.spec().numel()});
      return;
    }
    to = p.in(a.grads)->tensor, accumulate = p.in(a.grads)->accumulate();
  };
  place(weight_, g.weight, g.accumulate_weight), place(bias_, g.bias, g.accumulate_bias);
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
                                             .offset = offset_,
                                             .accumulate = g.accumulate_weight},
                    stream);
}

}  // namespace cleave::model
