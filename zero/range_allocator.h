// Allocator for ranges of different sizes in one block of memory, taken and returned in any order.
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

  // Returns the first free range of `numel` elements, starting at a multiple of 64, or nullopt.
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
