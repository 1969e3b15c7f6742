// Block-quantized floats: an element is a byte times the scale of its block.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// Quantizes blocks of `block` consecutive elements of x (float type; the last block may be shorter). scale =
// largest magnitude / 127; codes (uint8, the bits of a signed byte) = the integers nearest to x / scale, ties
// to even, in [-127, 127]. Codes are 0 if the scale is 0. A block with Inf or NaN has scale NaN and codes 0.
// scales: fp32, one per block. All devices return the same bits.
struct ToBlockInt8 {
  Tensor codes, scales;
  Tensor x;
  int64_t block = 1;
  void check() const;
  Traffic traffic() const { return {x, codes, scales}; }
};
CLEAVE_KERNEL(ToBlockInt8)

// y (float type) = code * scale in fp32, rounded once. Before this rounding, an element differs from the
// original by at most half a scale.
struct FromBlockInt8 {
  Tensor y;
  Tensor codes, scales;
  int64_t block = 1;
  void check() const;
  Traffic traffic() const { return {y, codes, scales}; }
};
CLEAVE_KERNEL(FromBlockInt8)

}  // namespace cleave::kernels
