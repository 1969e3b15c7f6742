#include "model/linear.h"

#include "kernels/dense.h"

namespace cleave::model {

void Linear::forward(Tensor y, Tensor x, Stream& stream) const {
  const int64_t rows = x.numel() / in;
  kernels::launch(kernels::Matmul{.c = y.view({rows, out}),
                                  .a = x.view({rows, in}),
                                  .b = weight.view({out, in}),
                                  .bias = bias,
                                  .transpose_b = true},
                  stream);
}

void Linear::forward_active(Tensor y, Tensor hidden, Tensor x, kernels::Activation f, Stream& stream) const {
  const int64_t rows = x.numel() / in;
  kernels::launch(kernels::DenseActivation{.y = y.view({rows, out}),
                                           .hidden = hidden.view({rows, out}),
                                           .x = x.view({rows, in}),
                                           .weight = weight.view({out, in}),
                                           .bias = bias,
                                           .kind = f},
                  stream);
}

void Linear::backward(Tensor dx, OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                      Stream& stream) const {
  if (dx.defined()) backward_input(dx, dy.all, stream);
  backward_weight(dy, x, dweight, dbias, stream);
}

void Linear::backward_input(Tensor dx, Tensor dy, Stream& stream) const {
  const int64_t rows = dx.numel() / in;
  kernels::launch(
      kernels::Matmul{
          .c = dx.view({rows, in}), .a = dy.view({rows, out}), .b = weight.view({out, in}), .bias = {}},
      stream);
}

void Linear::backward_active(Tensor dhidden, Tensor dy, Tensor hidden, kernels::Activation f,
                             Stream& stream) const {
  const int64_t rows = dhidden.numel() / in;
  kernels::launch(kernels::DenseActivationGradient{.dhidden = dhidden.view({rows, in}),
                                                   .dy = dy.view({rows, out}),
                                                   .weight = weight.view({out, in}),
                                                   .hidden = hidden.view({rows, in}),
                                                   .kind = f},
                  stream);
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
