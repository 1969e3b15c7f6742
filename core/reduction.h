// Reductions of an element over ranks.
#pragma once
#include <cstdint>

namespace cleave {

// sum: adds in rank order; 16-bit floats are added in fp32 and rounded once, integers wrap.
// max: the largest value; the first of equal values. NaN counts as missing, so the result is NaN only if all
// ranks have NaN. NCCL computes the same, and rank order does not change the result.
enum class Reduction : uint8_t { sum, max };

}  // namespace cleave
