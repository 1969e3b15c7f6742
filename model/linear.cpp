#include "model/linear.h"

#include "kernels/matmul.h"

namespace cleave {

void Linear::forward(Tensor y, Tensor x, Stream& stream) const {
  const int64_t rows = x.numel() / in;
  launch(Matmul{.c = y.view({rows, out}),
                .a = x.view({rows, in}),
                .b = weight.view({out, in}),
                .bias = bias,
                .transpose_b = true},
         stream);
}

void Linear::backward(Tensor dx, Tensor dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                      Stream& stream) const {
  if (dx.defined()) backward_input(dx, dy, stream);
  backward_weight(dy, x, dweight, dbias, stream);
}

void Linear::backward_input(Tensor dx, Tensor dy, Stream& stream) const {
  const int64_t rows = dx.numel() / in;
  launch(Matmul{.c = dx.view({rows, in}), .a = dy.view({rows, out}), .b = weight.view({out, in}), .bias = {}},
         stream);
}

void Linear::backward_weight(Tensor dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                             Stream& stream) const {
  const int64_t rows = x.numel() / in;
  const Tensor dy2 = dy.view({rows, out});
  launch(Matmul{.c = dweight.tensor.view({out, in}),
                .a = dy2,
                .b = x.view({rows, in}),
                .bias = {},
                .transpose_a = true,
                .accumulate = dweight.accumulate()},
         stream);
  if (dbias) launch(BiasGradient{.db = dbias->tensor, .dy = dy2, .accumulate = dbias->accumulate()}, stream);
}

}  // namespace cleave
