// Floats as bytes: blocks of elements share a scale, and an element is a multiple of it.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// For each block of `block` consecutive elements of x (float type; the last block may be shorter): its scale
// is its largest magnitude / 127, and codes (uint8, the bits of a signed byte) has the integers nearest to
// x / scale, ties to even, between -127 and 127; all are zero where the scale is. In a block with an Inf or a
// NaN the scale is NaN and the codes are zero. scales: fp32, one a block. The same bits on every device.
struct ToBlockInt8 {
  Tensor codes, scales;
  Tensor x;
  int64_t block = 1;
  void check() const;
  Traffic traffic() const { return {x, codes, scales}; }
};
CLEAVE_KERNEL(ToBlockInt8)

// y (float type) = code * scale in fp32, rounded once. So an element differs from what it was by half a scale
// at most, before that is rounded to y's type.
struct FromBlockInt8 {
  Tensor y;
  Tensor codes, scales;
  int64_t block = 1;
  void check() const;
  Traffic traffic() const { return {y, codes, scales}; }
};
CLEAVE_KERNEL(FromBlockInt8)

}  // namespace cleave::kernels
