#include "model/linear.h"

#include "kernels/dense.h"
#include "kernels/elementwise.h"

namespace cleave::model {
namespace {

// y += inner @ w or its transpose, with inner = scale * x @ v or its transpose.
void add_low_rank(Tensor y, Tensor x, const Adapter& adapter, bool forward, Stream& stream) {
  const Tensor& first = forward ? adapter.a : adapter.b;
  const Tensor& second = forward ? adapter.b : adapter.a;
  kernels::launch(kernels::Matmul{.c = adapter.inner, .a = x, .b = first, .bias = {}, .transpose_b = forward},
                  stream);
  kernels::launch(kernels::Scale{.y = adapter.inner, .x = adapter.inner, .factor = adapter.scale}, stream);
  kernels::launch(
      kernels::Matmul{
          .c = y, .a = adapter.inner, .b = second, .bias = {}, .transpose_b = forward, .accumulate = true},
      stream);
}

}  // namespace

Tensor rows_of(const Tensor& t, Range rows) {
  const Tensor part = t.rows(rows);
  return t.raw() ? part : Tensor(nullptr, t.dtype(), part.shape(), t.memory());
}

Linear Linear::of_rows(Range rows) const {
  Linear part = *this;
  if (!adapter) return part;
  part.adapter.inner = rows_of(adapter.inner, rows);
  return part;
}

void Linear::forward(Tensor y, Tensor x, Stream& stream) const {
  const int64_t rows = x.numel() / in;
  if (fp8)
    fp8.multiply(y.view({rows, out}), x.view({rows, in}), bias, stream);
  else
    kernels::launch(kernels::Matmul{.c = y.view({rows, out}),
                                    .a = x.view({rows, in}),
                                    .b = weight.view({out, in}),
                                    .bias = bias,
                                    .transpose_b = true},
                    stream);
  if (adapter) add_low_rank(y.view({rows, out}), x.view({rows, in}), adapter, true, stream);
}

void Linear::forward_active(Tensor y, Tensor hidden, Tensor x, Nonlinearity f, Stream& stream) const {
  const int64_t rows = x.numel() / in;
  const auto launch_both = [&](auto both) {
    both.y = y.view({rows, f.width(out)}), both.hidden = hidden.view({rows, out});
    both.x = x.view({rows, in}), both.weight = weight.view({out, in}), both.bias = bias, both.kind = f.kind;
    if (!adapter && !fp8) return kernels::launch(both, stream);
    forward(hidden, x, stream);
    kernels::launch(both.activation(), stream);
  };
  f.gated ? launch_both(kernels::DenseGated{}) : launch_both(kernels::DenseActivation{});
}

void Linear::backward(Tensor dx, OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                      Stream& stream) const {
  if (dx.defined()) backward_input(dx, dy.all, stream);
  backward_weight(dy, x, dweight, dbias, stream);
}

void Linear::backward_input(Tensor dx, Tensor dy, Stream& stream) const {
  const int64_t rows = dx.numel() / in;
  if (fp8)
    fp8.multiply(dx.view({rows, in}), dy.view({rows, out}), {}, stream);
  else
    kernels::launch(
        kernels::Matmul{
            .c = dx.view({rows, in}), .a = dy.view({rows, out}), .b = weight.view({out, in}), .bias = {}},
        stream);
  if (adapter) add_low_rank(dx.view({rows, in}), dy.view({rows, out}), adapter, false, stream);
}

void Linear::backward_active(Tensor dhidden, Tensor dx, Tensor dy, Tensor hidden, Nonlinearity f,
                             Stream& stream) const {
  const int64_t rows = dy.numel() / out;
  const auto launch_both = [&](auto both, Tensor product) {
    both.dhidden = dhidden, both.hidden = hidden;
    both.dy = dy.view({rows, out}), both.weight = weight.view({out, in}), both.kind = f.kind;
    if (!adapter && !fp8) return kernels::launch(both, stream);
    backward_input(product, dy, stream);
    kernels::launch(both.activation(), stream);
  };
  if (!f.gated) return launch_both(kernels::DenseActivationGradient{}, dhidden);
  kernels::DenseGatedGradient gated;
  gated.dactive = dx;
  launch_both(gated, dx);
}

void Linear::backward_weight(OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                             Stream& stream) const {
  const int64_t rows = x.numel() / in;
  const bool of_weight = dweight.wanted(), of_bias = dbias && dbias->wanted();
  const kernels::DenseWeightGradient both{.dweight = of_weight ? dweight.tensor.view({out, in}) : Tensor(),
                                          .dbias = of_bias ? dbias->tensor : Tensor(),
                                          .dy = dy.all.view({rows, out}),
                                          .x = x.view({rows, in}),
                                          .accumulate_weight = of_weight && dweight.accumulate(),
                                          .accumulate_bias = of_bias && dbias->accumulate()};
  if (of_weight && of_bias && dy.mine.numel() == dy.all.numel()) return kernels::launch(both, stream);
  if (of_weight) kernels::launch(both.product(), stream);
  if (!of_bias) return;
  kernels::BiasGradient of_my_rows = both.bias_gradient();
  of_my_rows.dy = dy.mine.view({dy.mine.numel() / out, out});
  kernels::launch(of_my_rows, stream);
}

}  // namespace cleave::model
