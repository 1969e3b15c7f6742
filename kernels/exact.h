// Sums with bits independent of their order: values are rounded once to multiples of a fixed grid and added
// as 64-bit integers.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// y (int64) = (accumulate ? y : 0) + the integer nearest to x * factor (ties to even); x is fp32, the product
// fp64. If the result's magnitude exceeds `limit`, or x is not finite, adds nothing and sets bad[0] (int64)
// to 1; otherwise leaves bad unchanged. limit: below 2^63.
struct RoundToGrid {
  Tensor y, bad;
  Tensor x;
  double factor = 1, limit = 0x1p62;
  bool accumulate = false;
  void check() const;
  Traffic traffic() const { return {x, y, y}; }
};
CLEAVE_KERNEL(RoundToGrid)

// y (fp32) = x (int64), rounded to nearest, times scale; rounded again unless scale is a power of two.
struct FromGrid {
  Tensor y, x;
  float scale = 1;
  void check() const;
  Traffic traffic() const { return {y, x}; }
};
CLEAVE_KERNEL(FromGrid)

// y += x, both int64, modulo 2^64.
struct AddIntegers {
  Tensor y, x;
  void check() const;
  Traffic traffic() const { return {y, y, x}; }
};
CLEAVE_KERNEL(AddIntegers)

// out[0..3] (int64) = sum of x^2 of an int64 tensor in four parts: each square, below 2^126, is split into
// 32-bit words, lowest first, and out[i] sums word i. The sum is out[0] + out[1] 2^32 + out[2] 2^64 + out[3]
// 2^96. Parts can be added elementwise; exact for up to 2^31 elements in total.
struct SumIntegerSquares {
  Tensor out;
  Tensor x;
  void check() const;
  Traffic traffic() const { return {x}; }
};
CLEAVE_KERNEL(SumIntegerSquares)

}  // namespace cleave::kernels
