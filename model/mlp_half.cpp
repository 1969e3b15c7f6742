#include "model/mlp_half.h"

#include "device/work_log.h"

namespace cleave::model {

MlpHalf::MlpHalf(const Config& config, const tensor_parallel::TensorAxis& axis)
    : c_(config), axis_(axis), columns_(axis_.mine(c_.hidden, "columns of the MLP").size()) {
  const auto part = [&](const std::string& name, const std::vector<int64_t>& blocks) {
    const int64_t out = int64_t(blocks.size()) * c_.hidden;
    Dense::Part made{.weight =
                         Parameter(axis_.cut({name + ".weight", {out, c_.width}, c_.init, true}, 0, blocks))};
    if (c_.up_bias) made.bias = Parameter(axis_.cut({name + ".bias", {out}, {}, false}, 0, blocks));
    return made;
  };
  if (c_.gated && c_.up.size() == 1)
    up_ = Dense({part(c_.up[0], {c_.hidden, c_.hidden})});
  else if (c_.gated)
    up_ = Dense({part(c_.up[0], {c_.hidden}), part(c_.up[1], {c_.hidden})});
  else
    up_ = Dense({part(c_.up[0], {c_.hidden})});
  Dense::Part down{
      .weight = Parameter(axis_.cut({c_.down + ".weight", {c_.width, c_.hidden}, c_.down_init, true}, 1))};
  if (c_.down_bias) down.bias = Parameter({c_.down + ".bias", {c_.width}, {}, false});
  down_ = Dense({down}, axis_.rank() == 0 ? Dense::Bias::added : Dense::Bias::elsewhere);
}

void MlpHalf::declare(std::vector<DeclaredUnit>& units) { up_.declare(units), down_.declare(units); }

void MlpHalf::attach(const config::AdapterRule& rule, std::vector<std::string>& linears) {
  up_.attach(rule, linears), down_.attach(rule, linears);
}

void MlpHalf::activate(Tensor active, Tensor hidden, Stream& stream) const {
  const Nonlinearity f = nonlinearity();
  if (f.gated)
    kernels::launch(kernels::GatedForward{.y = active, .x = hidden, .kind = f.kind}, stream);
  else
    kernels::launch(kernels::ActivationForward{.y = active, .x = hidden, .kind = f.kind}, stream);
}

void MlpHalf::forward(const ForwardArgs& a) const {
  const int64_t rows = axis_.all_rows(a.x.dim(0));
  const Tensor hidden = a.keep.take(a.x.dtype(), {rows, up_.out()});
  const Tensor active = (a.lean ? a.scratch : a.keep).take(a.x.dtype(), {rows, columns_});
  const CutLinear cut{axis_, a.stream, c_.name};
  const Linear up = up_.bind(a, rows), down = down_.bind(a, rows);
  cut.forward_active(up, active, hidden, a.x, nonlinearity(), a.scratch);
  cut.forward_summed(down, a.y, axis_.all_rows_of(a.y, a.scratch), active);
  a.saved.put(this, Kept{hidden, a.lean ? Tensor() : active});
}

void MlpHalf::backward(const BackwardArgs& a) const {
  Kept kept = a.saved.get<Kept>(this);
  const bool both = a.part == BackwardPart::both;
  if (!kept.active.defined() && a.part != BackwardPart::input && down_.trains(a.grads)) {
    kept.active = a.scratch.take(kept.hidden.dtype(), {kept.hidden.dim(0), columns_});
    const WorkLog::Repeats repeats;
    activate(kept.active, kept.hidden, a.stream);
  }
  const CutLinear cut{axis_, a.stream, c_.name};
  const Bound bound{up_.bind(a, kept.hidden.dim(0)), down_.bind(a, kept.hidden.dim(0))};
  if (a.part == BackwardPart::weight) {
    const auto gather_for = [&](const Dense& product, Tensor rows) {
      return product.trains(a.grads) ? cut.start_gather(rows, a.scratch) : CutLinear::Gathering();
    };
    const CutLinear::Gathering dy = gather_for(down_, a.dy);
    a.stream.wait(dy.here);
    return add_weights(a, bound, kept, {dy.all, a.dy}, a.for_weight->get<Waiting>(this).dhidden,
                       gather_for(up_, a.x));
  }
  const Tensor dhidden = (both ? a.scratch : *a.keep).take(kept.hidden.dtype(), kept.hidden.shape());
  const Tensor dactive = c_.gated ? a.scratch.take(dhidden.dtype(), {dhidden.dim(0), columns_}) : Tensor();
  const Tensor all_dy =
      cut.backward_active(bound.down, dhidden, dactive, kept.hidden, a.dy, nonlinearity(), a.scratch);
  const CutLinear::Gathering x =
      both && up_.trains(a.grads) ? cut.start_gather(a.x, a.scratch) : CutLinear::Gathering();
  const Event summed = cut.backward_summed(bound.up, a.dx, axis_.all_rows_of(a.dx, a.scratch), dhidden);
  if (both)
    add_weights(a, bound, kept, {all_dy, a.dy}, dhidden, x);  // overlaps the sum of dx
  else
    a.for_weight->put(this, Waiting{dhidden});
  a.stream.wait(summed);
}

void MlpHalf::add_weights(const BackwardArgs& a, const Bound& bound, const Kept& kept,
                          const Linear::OutputGradient& dy, Tensor dhidden,
                          const CutLinear::Gathering& x) const {
  down_.backward_weight(bound.down, dy, kept.active, a);
  a.stream.wait(x.here);
  up_.backward_weight(bound.up, dhidden, x.all, a);
}

}  // namespace cleave::model
