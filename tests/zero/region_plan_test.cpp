#include "zero/region_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace cleave {
namespace {

// The most that is alive at one visit: no packing can be smaller.
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

TEST(RegionPlan, NeverOverlapsBuffersThatLiveTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lifetimes(1 + random() % 20);
    for (Lifetime& l : lifetimes) {
      l.first = int(random() % 40);
      l.last = l.first + int(random() % 8);
      l.numel = 1 + int64_t(random() % 1000);
    }
    const RegionPlan plan = plan_regions(lifetimes);
    EXPECT_GE(plan.numel, lower_bound(lifetimes));
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      EXPECT_LE(plan.offsets[i] + lifetimes[i].numel, plan.numel);
      for (size_t j = 0; j < i; ++j) {
        const Lifetime &a = lifetimes[i], &b = lifetimes[j];
        if (a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(plan.offsets[i] + a.numel <= plan.offsets[j] ||
                    plan.offsets[j] + b.numel <= plan.offsets[i]);
      }
    }
  }
}

TEST(RegionPlan, TwoSlotsServeAnyNumberOfEqualLayersVisitedInTurn) {
  std::vector<Lifetime> lifetimes;
  for (int v = 0; v < 30; ++v) lifetimes.push_back({v, v + 1, 640});
  EXPECT_EQ(plan_regions(lifetimes).numel, 2 * 640);
}

TEST(RegionPlan, OfNothingIsEmpty) { EXPECT_EQ(plan_regions({}).numel, 0); }

}  // namespace
}  // namespace cleave
