// Elementwise activations, residual sums and dropout. x, y, dx and dy of an op have equal numel and one float
// type.
#pragma once
#include "core/philox.h"
#include "kernels/launch.h"

namespace cleave::kernels {

// silu(x) = x / (1 + e^-x).
enum class Activation : uint8_t { gelu_tanh, gelu_erf, relu, silu };

// y = f(x). May be in place.
struct ActivationForward {
  Tensor y, x;
  Activation kind = Activation::gelu_tanh;
  void check() const;
  Traffic traffic() const { return {y, x}; }
  Traffic least() const { return {y}; }
};
CLEAVE_KERNEL(ActivationForward)

// dx = dy * f'(x) with the forward's input x. dx may alias dy.
struct ActivationBackward {
  Tensor dx, dy, x;
  Activation kind = Activation::gelu_tanh;
  void check() const;
  Traffic traffic() const { return {dx, dy, x}; }
  Traffic least() const { return {x}; }
};
CLEAVE_KERNEL(ActivationBackward)

// Gated unit (Shazeer, arXiv 2002.05202; silu: SwiGLU, gelu: GEGLU): y = f(gate) * up. A row of x [rows, 2 *
// width] holds gate, then up. y: [rows, width], must not overlap x.
struct GatedForward {
  Tensor y, x;
  Activation kind = Activation::silu;
  void check() const;
  Traffic traffic() const { return {y, x}; }
  Traffic least() const { return {y}; }
};
CLEAVE_KERNEL(GatedForward)

// dx [rows, 2 * width], of gate and up, from dy [rows, width] and the forward's input x. dx may alias x, but
// not dy.
struct GatedBackward {
  Tensor dx, dy, x;
  Activation kind = Activation::silu;
  void check() const;
  Traffic traffic() const { return {dx, dy, x}; }
  Traffic least() const { return {x.dtype(), double(dx.bytes() + x.bytes() - dy.bytes())}; }
};
CLEAVE_KERNEL(GatedBackward)

// Soft cap (Gemma 2, arXiv 2408.00118): y = cap * tanh(x / cap), so |y| <= cap. May be in place. Its slope at
// x is 1 - (y / cap)^2.
struct SoftCap {
  Tensor y, x;
  float cap = 1;
  void check() const;
  Traffic traffic() const { return {y, x}; }
  Traffic least() const { return {y.dtype(), 0}; }
};
CLEAVE_KERNEL(SoftCap)

// y = a + b. y may alias either.
struct Add {
  Tensor y, a, b;
  void check() const;
  Traffic traffic() const { return {y, a, b}; }
  Traffic least() const { return {a}; }
};
CLEAVE_KERNEL(Add)

// y = keep(i) ? x / (1 - p) : 0 with keep(i) = philox.uniform(offset + i) >= p. Forward and backward are the
// same op: the mask is recomputed, never stored. `offset` is the global index of the first element, so the
// mask does not depend on how the batch is split. May be in place. p = 0 copies.
struct Dropout {
  Tensor y, x;
  float p = 0;
  Philox philox;
  int64_t offset = 0;
  void check() const;
  Traffic traffic() const { return {y, x}; }
  Traffic least() const { return {y.dtype(), 0}; }
};
CLEAVE_KERNEL(Dropout)

}  // namespace cleave::kernels
