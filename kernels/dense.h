// Matrix products of a dense layer together with what a library can do in the same pass over their result:
// the activation function, its gradient, the gradient of the bias. Each op is the same as the two ops that
// its members name, one after the other; a GPU may round less often between them in 16-bit types, where its
// f(x) and f'(x) see the product before it is rounded.
#pragma once
#include "kernels/activation.h"
#include "kernels/matmul.h"

namespace cleave::kernels {

// hidden = x @ weight^T + bias; y = f(hidden). x: [rows, in], weight: [out, in], bias (may be undefined):
// [out]; y and hidden: [rows, out] of one type, apart from each other.
struct DenseActivation {
  Tensor y, hidden;
  Tensor x, weight, bias;
  Activation kind = Activation::gelu_tanh;

  Matmul product() const { return {.c = hidden, .a = x, .b = weight, .bias = bias, .transpose_b = true}; }
  ActivationForward activation() const { return {.y = y, .x = hidden, .kind = kind}; }
  void check() const;
  double flops() const { return product().flops(); }
  void add_parts(Tally& tally) const {
    add_to(tally, "Matmul", product()), add_to(tally, "ActivationForward", activation());
  }
};
CLEAVE_KERNEL(DenseActivation)

// dhidden = (dy @ weight) * f'(hidden), the gradient of the layer's input through the activation before it.
// dy: [rows, out], weight: [out, in], dhidden and hidden: [rows, in] of one type, apart from each other.
struct DenseActivationGradient {
  Tensor dhidden;
  Tensor dy, weight, hidden;
  Activation kind = Activation::gelu_tanh;

  Matmul product() const { return {.c = dhidden, .a = dy, .b = weight}; }
  ActivationBackward activation() const { return {.dx = dhidden, .dy = dhidden, .x = hidden, .kind = kind}; }
  void check() const;
  double flops() const { return product().flops(); }
  void add_parts(Tally& tally) const {
    add_to(tally, "Matmul", product()), add_to(tally, "ActivationBackward", activation());
  }
};
CLEAVE_KERNEL(DenseActivationGradient)

// hidden = x @ weight^T + bias, gate and up side by side; y = f(gate) * up. x: [rows, in], weight: [2 out,
// in], bias (may be undefined): [2 out]; hidden: [rows, 2 out], y: [rows, out], of one type, apart from each
// other.
struct DenseGated {
  Tensor y, hidden;
  Tensor x, weight, bias;
  Activation kind = Activation::silu;

  Matmul product() const { return {.c = hidden, .a = x, .b = weight, .bias = bias, .transpose_b = true}; }
  GatedForward activation() const { return {.y = y, .x = hidden, .kind = kind}; }
  void check() const;
  double flops() const { return product().flops(); }
  void add_parts(Tally& tally) const {
    add_to(tally, "Matmul", product()), add_to(tally, "GatedForward", activation());
  }
};
CLEAVE_KERNEL(DenseGated)

// dhidden [rows, 2 in], of gate and up, from dy @ weight, for which dactive [rows, in] is room: what is in it
// afterwards is nobody's. dy: [rows, out], weight: [out, in]; dhidden and hidden of one type, apart from each
// other and from dactive.
struct DenseGatedGradient {
  Tensor dhidden, dactive;
  Tensor dy, weight, hidden;
  Activation kind = Activation::silu;

  Matmul product() const { return {.c = dactive, .a = dy, .b = weight}; }
  GatedBackward activation() const { return {.dx = dhidden, .dy = dactive, .x = hidden, .kind = kind}; }
  void check() const;
  double flops() const { return product().flops(); }
  void add_parts(Tally& tally) const {
    add_to(tally, "Matmul", product()), add_to(tally, "GatedBackward", activation());
  }
};
CLEAVE_KERNEL(DenseGatedGradient)

// dweight [out, in] = (accumulate_weight ? dweight : 0) + dy^T @ x; dbias [out] = (accumulate_bias ? dbias :
// 0) + column sums of dy. dy: [rows, out], x: [rows, in]. dbias and dweight are apart. On a GPU a sum
// may be rounded to 16 bits before it is added to a gradient of 16 bits.
struct DenseWeightGradient {
  Tensor dweight, dbias;
  Tensor dy, x;
  bool accumulate_weight = false, accumulate_bias = false;

  Matmul product() const {
    return {.c = dweight, .a = dy, .b = x, .transpose_a = true, .accumulate = accumulate_weight};
  }
  BiasGradient bias_gradient() const { return {.db = dbias, .dy = dy, .accumulate = accumulate_bias}; }
  void check() const;
  double flops() const { return product().flops(); }
  void add_parts(Tally& tally) const {
    add_to(tally, "Matmul", product()), add_to(tally, "BiasGradient", bias_gradient());
  }
};
CLEAVE_KERNEL(DenseWeightGradient)

}  // namespace cleave::kernels
