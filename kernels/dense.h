// Matrix products of dense layers, fused with work that a library can do in the same pass: the activation
// function, its gradient, the bias gradient. Each op equals the sequence of the two ops that its members
// return. In 16-bit types a GPU may round less often: its f(x) and f'(x) see the product before rounding.
#pragma once
#include "kernels/activation.h"
#include "kernels/matmul.h"

namespace cleave::kernels {

// hidden = x @ weight^T + bias; y = f(hidden). x: [rows, in], weight: [out, in], bias (may be undefined):
// [out]; y and hidden: [rows, out] of one type, not overlapping.
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

// dhidden = (dy @ weight) * f'(hidden): gradient of the layer's input through the preceding activation. dy:
// [rows, out], weight: [out, in], dhidden and hidden: [rows, in] of one type, not overlapping.
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
// in], bias (may be undefined): [2 out]; hidden: [rows, 2 out], y: [rows, out], of one type, not overlapping.
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

// dhidden [rows, 2 in], of gate and up, from dy @ weight. dactive [rows, in] is scratch; its contents are
// unspecified afterwards. dy: [rows, out], weight: [out, in]. dhidden and hidden have one type; dhidden,
// hidden and dactive must not overlap.
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
// 0) + column sums of dy. dy: [rows, out], x: [rows, in]. dbias and dweight must not overlap. A GPU may round
// a sum to 16 bits before it adds the sum to a 16-bit gradient.
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
