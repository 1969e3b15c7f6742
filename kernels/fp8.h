// Products of 8-bit floats (device/fp8.h). An operand is codes and scales: an element is its code's value
// times a scale, which is a power of two, so that scaling rounds nothing and the element is exact in bf16,
// too. Rows of codes lie along the sums, and both operands of a product do: that is the one layout of
// Hopper's FP8 products in cuBLASLt.
#pragma once
#include "device/fp8.h"
#include "kernels/launch.h"

namespace cleave::kernels {

// Terms of a sum of codes come in whole multiples of this.
inline constexpr int64_t kFp8Terms = 16;

// codes [rows, terms], of E4M3 or E5M2, are the nearest to x / scale, with zeros behind the elements of x: x
// is [rows, up to terms], transposed [up to terms, rows], of a float type. What is larger than the type's
// largest number becomes it, what is not finite a NaN.
//
// A scale takes a magnitude between 1 and 2 times a power of two to the same in [top / 2, top), where top is
// the largest power of two of the type: what grows by 1.75 is not cut off yet. history defined: scales has
// one element, for the largest of `history` (fp32, at most 1,024 elements), times unit; otherwise one a row,
// for the row itself.
struct ToFp8 {
  Tensor codes, scales;  // scales: fp32 [1] or [rows]
  // fp32 [1]: becomes the largest magnitude of x over unit, where that is more. A NaN counts as missing.
  // Undefined: nobody asks.
  Tensor seen = {};
  Tensor x;
  Tensor history = {};
  float unit = 1;  // a power of two
  bool transposed = false;

  void check() const;
  Traffic traffic() const { return {x, codes, scales}; }
  int64_t variant() const { return transposed; }
};
CLEAVE_KERNEL(ToFp8)

// c = a @ b^T [+ bias] [+ c] with a [m, terms] and b [n, terms] of codes, not both of E5M2, and their scales:
// one, or for both one a row. c [m, n] is bf16, fp16 or fp32, rounded once from sums in fp32 (a GPU library
// may round the product before it adds bias or c, too); bias [n] is of a float type, not together with
// accumulate. Its numbers are those of Matmul over what the codes stand for, on a GPU but for the order of
// sums.
struct Fp8Matmul {
  Tensor c, a, b, a_scales, b_scales;
  Tensor bias = {};
  bool accumulate = false;

  void check() const;
  Traffic traffic() const { return accumulate ? Traffic{a, b, c, c} : Traffic{a, b, c}; }
  double flops() const { return 2.0 * double(c.numel()) * double(a.dim(1)); }
};
CLEAVE_KERNEL(Fp8Matmul)

// The largest magnitudes of a row's last steps, the newest first: every row of history [rows, steps] (fp32)
// moves by one, and its first is the first of the row of seen (of the same shape), unless that is below 0:
// nobody saw any.
struct PushFp8History {
  Tensor history, seen;
  void check() const;
  Traffic traffic() const { return {history, history, seen}; }
};
CLEAVE_KERNEL(PushFp8History)

}  // namespace cleave::kernels
