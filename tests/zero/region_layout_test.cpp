#include "zero/region_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace cleave::zero {
namespace {

// Maximum live elements at one visit, a lower bound of every packing.
int64_t lower_bound(const std::vector<Lifetime>& lifetimes) {
  int64_t most = 0;
  for (int v = 0; v < 64; ++v) {
    int64_t sum = 0;
    for (const Lifetime& l : lifetimes)
      if (l.first <= v && v <= l.last) sum += l.numel;
    most = std::max(most, sum);
  }
  return most;
}

TEST(RegionLayout, NeverOverlapsBuffersThatLiveTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes(1 + random() % 20);
    for (Lifetime& l : lifetimes) {
      l.first = int(random() % 40);
      l.last = l.first + int(random() % 8);
      l.numel = 1 + int64_t(random() % 1000);
    }
    const RegionLayout layout = lay_out_regions(lifetimes);
    EXPECT_GE(layout.numel, lower_bound(lifetimes));
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      EXPECT_LE(layout.offsets[i] + lifetimes[i].numel, layout.numel);
      for (size_t j = 0; j < i; ++j) {
        const Lifetime &a = lifetimes[i], &b = lifetimes[j];
        if (a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(layout.offsets[i] + a.numel <= layout.offsets[j] ||
                    layout.offsets[j] + b.numel <= layout.offsets[i]);
      }
    }
  }
}

TEST(RegionLayout, TwoSlotsServeAnyNumberOfEqualLayersVisitedInTurn) {
  std::vector<Lifetime> lifetimes;
  for (int v = 0; v < 30; ++v) lifetimes.push_back({v, v + 1, 640});
  EXPECT_EQ(lay_out_regions(lifetimes).numel, 2 * 640);
}

TEST(RegionLayout, OfNothingIsEmpty) { EXPECT_EQ(lay_out_regions({}).numel, 0); }

}  // namespace
}  // namespace cleave::zero
