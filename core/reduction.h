// How ranks' values of an element become one.
#pragma once
#include <cstdint>

namespace cleave {

// sum: added in rank order; 16-bit floats are added in fp32 and rounded once, integers wrap.
// max: the largest, and of equal ones the first. A NaN counts as missing, so that the result is one only
// where every rank has one: that is what NCCL computes, and no order of the ranks changes it.
enum class Reduction : uint8_t { sum, max };

}  // namespace cleave
