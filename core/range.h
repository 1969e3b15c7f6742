// Half-open index ranges and the rounding rules of partitioning.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/error.h"

namespace cleave {

struct Range {
  int64_t begin = 0, end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr Range shifted(int64_t by) const { return {begin + by, end + by}; }
  bool operator==(const Range&) const = default;
};

// Returns an empty range (begin == end) if the ranges do not overlap.
constexpr Range intersect(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

inline int64_t div_exact(int64_t a, int64_t b) {
  CHECK(b > 0 && a % b == 0, "{} does not divide by {}", a, b);
  return a / b;
}

// Returns the index-th of `parts` contiguous pieces of [0, numel). Pieces have ceil(numel / parts) elements;
// the last ones are shorter or empty.
constexpr Range part(int64_t numel, int64_t parts, int64_t index) {
  const int64_t length = ceil_div(numel, parts);
  return {std::min(numel, index * length), std::min(numel, (index + 1) * length)};
}

}  // namespace cleave
