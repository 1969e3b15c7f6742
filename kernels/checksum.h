// Checksum of the bits of a tensor.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// out[0] (int64) += sum over the elements of x, of any type, of a mix of position and bits
// (kernels/checksum_mix.h). The result does not depend on threads or devices. A change of one element always
// changes it, if no other changes; other changes keep it with a probability of about 2^-32. Positions are
// counted from `first`.
struct Checksum {
  Tensor out;
  Tensor x;
  int64_t first = 0;
  void check() const;
  Traffic traffic() const { return {x}; }
  Traffic least() const { return {x.dtype(), 0}; }
};
CLEAVE_KERNEL(Checksum)

}  // namespace cleave::kernels
