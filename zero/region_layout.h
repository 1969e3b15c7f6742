// Packs buffers with known lifetimes into one block of memory. The order of layer visits is known, so the set
// of units gathered (or with a gradient bucket) at the same time is computed once before training.
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::zero {

// Lifetime of a buffer that exists during visits [first, last].
struct Lifetime {
  int first = 0, last = 0;
  int64_t numel = 0;
};

struct RegionLayout {
  std::vector<int64_t> offsets;  // in elements, one per lifetime
  int64_t numel = 0;             // of the whole block
};

// First fit in order of the first visit. Buffers with intersecting lifetimes never overlap. Offsets are
// multiples of 64 elements.
RegionLayout lay_out_regions(const std::vector<Lifetime>& lifetimes);

}  // namespace cleave::zero
