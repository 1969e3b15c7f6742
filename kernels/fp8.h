// Products of 8-bit floats (device/fp8.h). An operand has codes and scales: an element is its code's value
// times a scale. Scales are powers of two, so scaling is exact and elements are also exact in bf16. The
// summed dim of both operands is the inner one, the only layout of Hopper's FP8 products in cuBLASLt.
#pragma once
#include "device/fp8.h"
#include "kernels/launch.h"

namespace cleave::kernels {

// The summed dim must be a multiple of this.
inline constexpr int64_t kFp8Terms = 16;

// Quantizes x to codes [rows, terms] of E4M3 or E5M2: the codes nearest to x / scale, followed by zeros up to
// `terms`. x: [rows, up to terms], or transposed [up to terms, rows], of a float type. Finite values
// saturate; Inf and NaN become NaN.
//
// The scale maps the power of two of a magnitude so that the magnitude is in [top / 2, top), with the type's
// largest power of two `top`; values that grow by 1.75 still do not saturate. With a defined history, scales
// has one element: the scale of the maximum of `history` (fp32, at most 1,024 elements) times unit. Otherwise
// there is one scale per row, for the row's largest magnitude.
struct ToFp8 {
  Tensor codes, scales;  // scales: fp32 [1] or [rows]
  // fp32 [1]: becomes max(seen, largest magnitude of x / unit). NaN counts as missing. Undefined: not
  // computed.
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

// c = a @ b^T [+ bias] [+ c] with codes a [m, terms] and b [n, terms], not both E5M2. Both have one scale, or
// both have one per row. c [m, n] is bf16, fp16 or fp32, rounded once from fp32 sums (a GPU library may also
// round the product before it adds bias or c). bias [n] has a float type; not together with accumulate.
// Equals Matmul of the decoded operands; on a GPU except for the order of sums.
struct Fp8Matmul {
  Tensor c, a, b, a_scales, b_scales;
  Tensor bias = {};
  bool accumulate = false;

  void check() const;
  Traffic traffic() const { return accumulate ? Traffic{a, b, c, c} : Traffic{a, b, c}; }
  double flops() const { return 2.0 * double(c.numel()) * double(a.dim(1)); }
};
CLEAVE_KERNEL(Fp8Matmul)

// Pushes a step's largest magnitudes: shifts every row of history [rows, steps] (fp32; newest first) by one,
// and sets its first element to the first element of the row in `seen` (same shape), unless that is negative
// (not measured).
struct PushFp8History {
  Tensor history, seen;
  void check() const;
  Traffic traffic() const { return {history, history, seen}; }
};
CLEAVE_KERNEL(PushFp8History)

}  // namespace cleave::kernels
