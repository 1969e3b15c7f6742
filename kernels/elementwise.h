// Casts, fills, scaled sums and reductions over flat tensors.
#pragma once
#include "core/philox.h"
#include "kernels/launch.h"

namespace cleave::kernels {

// y = x converted between float types; equal numel. Equal types copy.
struct Cast {
  Tensor y, x;
  void check() const;
  Traffic traffic() const { return {x, y}; }
  Traffic least() const { return {y}; }
};
CLEAVE_KERNEL(Cast)

// Sets every element of a float or integer tensor to value.
struct Fill {
  Tensor y;
  double value = 0;
  void check() const;
  Traffic traffic() const { return {y}; }
  Traffic least() const { return {y.dtype(), 0}; }
};
CLEAVE_KERNEL(Fill)

// y += alpha * x in fp32, rounded once; y and x are float types and may differ.
struct Axpy {
  Tensor y, x;
  float alpha = 1;
  void check() const;
  Traffic traffic() const { return {y, y, x}; }
  Traffic least() const { return {y}; }
};
CLEAVE_KERNEL(Axpy)

// y = factor * x, rounded once. May be in place.
struct Scale {
  Tensor y, x;
  float factor = 1;
  void check() const;
  Traffic traffic() const { return {y, x}; }
  Traffic least() const { return {y.dtype(), 0}; }
};
CLEAVE_KERNEL(Scale)

// Copies strided runs of `width` consecutive elements: for o < outer.count, i < inner.count and j < width,
// y[o * outer.y + i * inner.y + j] = x[o * outer.x + i * inner.x + j]. x and y have equal types and must not
// overlap; the caller must ensure that the runs of y do not overlap.
struct CopyRuns {
  struct Step {
    int64_t count = 1, y = 0, x = 0;  // strides in elements
  };
  Tensor y, x;
  int64_t width = 1;
  Step outer = {}, inner = {};
  void check() const;
  Traffic traffic() const {
    return {y.dtype(), 2.0 * double(outer.count * inner.count * width * size_of(y.dtype()))};
  }
  Traffic least() const { return {y.dtype(), 0}; }
};
CLEAVE_KERNEL(CopyRuns)

// out[0] (fp64) = sum of squares of x (float type). The order of additions depends only on numel and on the
// position of an element, not on threads or instruction set; appended zeros do not change the bits. Inf or
// NaN in x, or an overflow of the sum, gives a non-finite result, which serves as the overflow test.
struct SumSquares {
  Tensor out;
  Tensor x;
  void check() const;
  Traffic traffic() const { return {x}; }
  Traffic least() const { return {x.dtype(), 0}; }
};
CLEAVE_KERNEL(SumSquares)

// out[0] (fp64) = sum of x (fp32), in an order that depends only on numel.
struct Sum {
  Tensor out;
  Tensor x;
  void check() const;
  Traffic traffic() const { return {x}; }
  Traffic least() const { return {x.dtype(), 0}; }
};
CLEAVE_KERNEL(Sum)

// y[i] (fp32) = random value of the element with index first + i in the whole tensor. normal: scale *
// philox.normal(index), within 1e-6 of scale; uniform: scale * (2 philox.uniform(index) - 1).
struct RandomFill {
  Tensor y;
  Philox philox;
  int64_t first = 0;
  float scale = 1;
  bool normal = true;
  void check() const;
  Traffic traffic() const { return {y}; }
};
CLEAVE_KERNEL(RandomFill)

}  // namespace cleave::kernels
