// Layer normalization (Ba et al., arXiv 1607.06450) and root-mean-square normalization (Zhang and Sennrich,
// arXiv 1910.07467), fused with the preceding residual sum.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// sum = x + residual if residual is defined; else sum is not written and x is normalized. y = (s - mean) *
// rstd * weight + bias per row, with s = sum or x. x, residual, sum, y: [rows, width]; weight, bias: [width]
// of the same type; mean, rstd: [rows] fp32, rstd = 1 / sqrt(variance + eps). sum may alias x or residual.
struct LayerNormForward {
  Tensor y, sum = {}, mean, rstd;
  Tensor x, residual = {}, weight, bias;
  float eps = 1e-5f;
  void check() const;
  Traffic traffic() const { return {y, sum, x, residual}; }
  Traffic least() const { return {y, residual}; }
};
CLEAVE_KERNEL(LayerNormForward)

// dx = (dresidual if defined, else 0) + gradient through the normalization. dweight, dbias: [width] fp32,
// bf16 or fp16; added to if accumulate, else overwritten. x is the normalized tensor. dx may alias dy or
// dresidual. Sums over rows run in blocks of rows; the block size does not depend on the number of threads.
struct LayerNormBackward {
  Tensor dx, dweight, dbias;
  Tensor dy, x, mean, rstd, weight, dresidual = {};
  bool accumulate_weight = false, accumulate_bias = false;
  void check() const;
  Traffic traffic() const { return {dx, dy, x, dresidual}; }
  Traffic least() const { return {x, dresidual}; }
};
CLEAVE_KERNEL(LayerNormBackward)

// y = s * rstd * (offset + weight) per row, rstd = 1 / sqrt(mean of s^2 + eps); s and operands as in
// LayerNormForward. With offset 1, weights are added to a gain of 1 (Gemma).
struct RmsNormForward {
  Tensor y, sum = {}, rstd;
  Tensor x, residual = {}, weight;
  float eps = 1e-6f, offset = 0;
  void check() const;
  Traffic traffic() const { return {y, sum, x, residual}; }
  Traffic least() const { return {y, residual}; }
};
CLEAVE_KERNEL(RmsNormForward)

// Same as LayerNormBackward without mean and bias, with the forward's offset.
struct RmsNormBackward {
  Tensor dx, dweight;
  Tensor dy, x, rstd, weight, dresidual = {};
  float offset = 0;
  bool accumulate = false;
  void check() const;
  Traffic traffic() const { return {dx, dy, x, dresidual}; }
  Traffic least() const { return {x, dresidual}; }
};
CLEAVE_KERNEL(RmsNormBackward)

}  // namespace cleave::kernels
