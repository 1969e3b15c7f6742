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
  const int64_t rows = x.numel() / in;
  const Tensor dy2 = dy.view({rows, out});
  if (dx.defined())
    launch(Matmul{.c = dx.view({rows, in}), .a = dy2, .b = weight.view({out, in}), .bias = {}}, stream);
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
