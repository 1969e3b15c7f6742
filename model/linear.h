// The dense layer's arithmetic, shared by every layer that has one: y = x @ weight^T + bias, weight [out,
// in].
#pragma once
#include "kernels/activation.h"
#include "model/fp8.h"
#include "model/layer.h"

namespace cleave::model {

// Rows of a result; of one without memory, in a dry run, a tensor without memory.
Tensor rows_of(const Tensor& t, Range rows);

// What is added to a product: y += inner @ b^T with inner = scale * x @ a^T.
struct Adapter {
  Tensor a = {}, b = {};  // [rank, in] and [out, rank]; undefined: there is none
  float scale = 1;
  Tensor inner =
      {};  // [rows, rank], written by the way through: forward's, or backward_input's scale * dy @ b

  explicit operator bool() const { return inner.defined(); }
};

// f of a product's result: of every element, or of a gated unit's two halves, whose rows become half as wide.
struct Nonlinearity {
  Nonlinearity(kernels::Activation f, bool is_gated = false) : kind(f), gated(is_gated) {}
  int64_t width(int64_t hidden) const { return gated ? hidden / 2 : hidden; }
  kernels::Activation kind;
  bool gated;
};

struct Linear {
  int64_t in = 0, out = 0;
  Tensor weight = {}, bias = {};  // bias may be undefined; the weights' gradients need neither
  Adapter adapter = {};           // its inner has as many rows as x
  Fp8Product fp8 = {};            // the weight's product, of this pass, where it is in FP8

  // The same for some of the rows.
  Linear of_rows(Range rows) const;

  // The gradient of the output. Where ranks of a tensor axis sum their outputs and each keeps some rows, the
  // weights need `all` of them and the bias this rank's, `mine`.
  struct OutputGradient {
    OutputGradient(Tensor dy) : all(dy), mine(dy) {}
    OutputGradient(Tensor all_rows, Tensor my_rows) : all(all_rows), mine(my_rows) {}
    Tensor all, mine;
  };

  void forward(Tensor y, Tensor x, Stream& stream) const;
  // hidden as forward's y, and y = f(hidden).
  void forward_active(Tensor y, Tensor hidden, Tensor x, Nonlinearity f, Stream& stream) const;
  // dx may be undefined; dbias is null without a bias. Both parts below. Gradients that are not wanted are
  // left out, with their products.
  void backward(Tensor dx, OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                Stream& stream) const;
  void backward_input(Tensor dx, Tensor dy, Stream& stream) const;
  // Goes beyond backward_input where x = f(hidden), to hidden's gradient. dx is room for that of a gated x.
  void backward_active(Tensor dhidden, Tensor dx, Tensor dy, Tensor hidden, Nonlinearity f,
                       Stream& stream) const;
  void backward_weight(OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                       Stream& stream) const;
};

}  // namespace cleave::model
