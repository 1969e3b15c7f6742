// Elementwise activations, residual sums and dropout. x, y, dx, dy have equal numel and one float type each
// op.
#pragma once
#include "core/philox.h"
#include "kernels/launch.h"

namespace cleave::kernels {

enum class Activation : uint8_t { gelu_tanh, gelu_erf, relu };

// y = f(x). May be in place.
struct ActivationForward {
  Tensor y, x;
  Activation kind = Activation::gelu_tanh;
  void check() const;
};
CLEAVE_KERNEL(ActivationForward)

// dx = dy * f'(x), x being the forward's input. dx may alias dy.
struct ActivationBackward {
  Tensor dx, dy, x;
  Activation kind = Activation::gelu_tanh;
  void check() const;
};
CLEAVE_KERNEL(ActivationBackward)

// The gated unit SwiGLU (Shazeer, arXiv 2002.05202): y = silu(gate) * up, silu(g) = g / (1 + e^-g). A row of
// x [rows, 2 * width] holds gate, then up; y: [rows, width], apart from x.
struct SwiGluForward {
  Tensor y, x;
  void check() const;
};
CLEAVE_KERNEL(SwiGluForward)

// dx [rows, 2 * width], of both halves, from dy [rows, width] and the forward's input x. dx may alias x, not
// dy.
struct SwiGluBackward {
  Tensor dx, dy, x;
  void check() const;
};
CLEAVE_KERNEL(SwiGluBackward)

// y = a + b. y may alias either.
struct Add {
  Tensor y, a, b;
  void check() const;
};
CLEAVE_KERNEL(Add)

// y = keep(i) ? x / (1 - p) : 0, where keep(i) = philox.uniform(offset + i) >= p. Forward and backward are
// the same op: the mask is recomputed, never stored. `offset` is the global index of the first element, so
// the mask does not depend on how the batch is split. May be in place. p = 0 copies.
struct Dropout {
  Tensor y, x;
  float p = 0;
  Philox philox;
  int64_t offset = 0;
  void check() const;
};
CLEAVE_KERNEL(Dropout)

}  // namespace cleave::kernels
