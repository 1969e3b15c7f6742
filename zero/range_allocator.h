// Ranges of different sizes in one block of memory, taken and given back in any order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/range.h"

namespace cleave::zero {

class RangeAllocator {
 public:
  explicit RangeAllocator(int64_t numel = 0) : numel_(numel) {}

  // The first free range of so many elements; it begins at a multiple of 64. None: there is none.
  std::optional<Range> take(int64_t numel) {
    int64_t at = 0;
    auto before = taken_.begin();
    for (; before != taken_.end() && before->begin < at + numel; ++before) at = round_up(before->end, 64);
    if (at + numel > numel_) return std::nullopt;
    return *taken_.insert(before, {at, at + numel});
  }
  void give_back(Range range) { std::erase(taken_, range); }

 private:
  int64_t numel_;
  std::vector<Range> taken_;  // in order
};

}  // namespace cleave::zero
