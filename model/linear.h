// Arithmetic of dense layers: y = x @ weight^T + bias, weight [out, in].
#pragma once
#include "kernels/activation.h"
#include "model/fp8.h"
#include "model/layer.h"

namespace cleave::model {

// Returns rows of a tensor; in a dry run the result has no memory either.
Tensor rows_of(const Tensor& t, Range rows);

// Low-rank term of a product: y += inner @ b^T with inner = scale * x @ a^T.
struct Adapter {
  Tensor a = {}, b = {};  // [rank, in] and [out, rank]; undefined: no adapter
  float scale = 1;
  Tensor inner = {};  // [rows, rank], written by forward, or by backward_input as scale * dy @ b

  explicit operator bool() const { return inner.defined(); }
};

// Function f of a product's result: elementwise, or over the two halves of a gated unit, which makes rows
// half as wide.
struct Nonlinearity {
  Nonlinearity(kernels::Activation f, bool is_gated = false) : kind(f), gated(is_gated) {}
  int64_t width(int64_t hidden) const { return gated ? hidden / 2 : hidden; }
  kernels::Activation kind;
  bool gated;
};

struct Linear {
  int64_t in = 0, out = 0;
  Tensor weight = {}, bias = {};  // bias may be undefined; weight gradients need neither
  Adapter adapter = {};           // its inner has as many rows as x
  Fp8Product fp8 = {};            // FP8 product of this pass, if enabled

  // Returns the layer for some of the rows.
  Linear of_rows(Range rows) const;

  // Gradient of the output. If ranks of a tensor axis sum their outputs and each keeps some rows, the weights
  // need `all` rows and the bias this rank's, `mine`.
  struct OutputGradient {
    OutputGradient(Tensor dy) : all(dy), mine(dy) {}
    OutputGradient(Tensor all_rows, Tensor my_rows) : all(all_rows), mine(my_rows) {}
    Tensor all, mine;
  };

  void forward(Tensor y, Tensor x, Stream& stream) const;
  // hidden as forward's y, and y = f(hidden).
  void forward_active(Tensor y, Tensor hidden, Tensor x, Nonlinearity f, Stream& stream) const;
  // Runs both parts below. dx may be undefined; dbias is null without a bias. Unwanted gradients are skipped
  // with their products.
  void backward(Tensor dx, OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                Stream& stream) const;
  void backward_input(Tensor dx, Tensor dy, Stream& stream) const;
  // Like backward_input for x = f(hidden): also computes the gradient of hidden. dx is scratch memory for a
  // gated x.
  void backward_active(Tensor dhidden, Tensor dx, Tensor dy, Tensor hidden, Nonlinearity f,
                       Stream& stream) const;
  void backward_weight(OutputGradient dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                       Stream& stream) const;
};

}  // namespace cleave::model
