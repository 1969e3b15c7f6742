// Packing of buffers with known lifetimes into one block of memory. The order in which layers are visited is
// known, so which units are gathered (or hold a gradient bucket) at the same time is arithmetic, done once
// before training.
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::zero {

// A buffer that exists during visits [first, last].
struct Lifetime {
  int first = 0, last = 0;
  int64_t numel = 0;
};

struct RegionLayout {
  std::vector<int64_t> offsets;  // in elements, one a lifetime
  int64_t numel = 0;             // of the whole block
};

// First fit in order of the first visit; buffers whose lifetimes meet never overlap. Offsets are multiples of
// 64 elements.
RegionLayout lay_out_regions(const std::vector<Lifetime>& lifetimes);

}  // namespace cleave::zero
