#include "zero/region_layout.h"

#include <algorithm>
#include <numeric>

#include "core/range.h"

namespace cleave::zero {

RegionLayout lay_out_regions(const std::vector<Lifetime>& lifetimes) {
  RegionLayout layout{std::vector<int64_t>(lifetimes.size(), 0), 0};
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].first < lifetimes[b].first; });
  std::vector<size_t> placed;
  for (const size_t i : order) {
    const Lifetime& mine = lifetimes[i];
    std::vector<Range> taken;
    for (const size_t j : placed)
      if (lifetimes[j].first <= mine.last && mine.first <= lifetimes[j].last)
        taken.push_back({layout.offsets[j], layout.offsets[j] + round_up(lifetimes[j].numel, 64)});
    std::sort(taken.begin(), taken.end(), [](Range a, Range b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const Range& r : taken) {
      if (at + mine.numel <= r.begin) break;
      at = std::max(at, r.end);
    }
    layout.offsets[i] = at;
    layout.numel = std::max(layout.numel, at + mine.numel);
    placed.push_back(i);
  }
  return layout;
}

}  // namespace cleave::zero
