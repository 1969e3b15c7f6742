#include "zero/flat_layout.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

UnitSpec unit() {
  return {"u",
          {{"bias", {5}, {}, false},
           {"weight", {3, 4}, {}, true},
           {"scale", {2}, {}, false},
           {"table", {7}, {}, true}}};
}

TEST(FlatLayout, PadsTheTailSoShardsAreEqual) {
  for (int shards : {1, 2, 3, 4, 5, 7, 31}) {
    const FlatLayout layout(unit(), shards);
    EXPECT_EQ(layout.used_numel(), 26);
    EXPECT_EQ(layout.numel() % shards, 0);
    EXPECT_GE(layout.numel(), 26);
    EXPECT_LT(layout.numel(), 26 + shards);
  }
}

TEST(FlatLayout, PutsDecayedParametersFirstAndKeepsDeclarationOrderWithin) {
  const FlatLayout layout(unit(), 1);
  EXPECT_EQ(layout.range(1), (Range{0, 12}));
  EXPECT_EQ(layout.range(3), (Range{12, 19}));
  EXPECT_EQ(layout.range(0), (Range{19, 24}));
  EXPECT_EQ(layout.range(2), (Range{24, 26}));
}

TEST(FlatLayout, SplitsAnySliceIntoAtMostOneRangeWithDecayAndOneWithout) {
  const FlatLayout layout(unit(), 4);  // 28 elements, 19 of them decayed
  int64_t decayed = 0, rest = 0;
  for (int shard = 0; shard < 4; ++shard) {
    const auto groups = layout.groups(Range{0, 7}.shifted(shard * 7));
    ASSERT_LE(groups.size(), 2u);
    for (const auto& g : groups) (g.decay ? decayed : rest) += g.range.size();
  }
  EXPECT_EQ(decayed, 19);
  EXPECT_EQ(rest, 9);
}

TEST(FlatLayout, PiecesOfAllShardsCoverEveryElementOnce) {
  const FlatLayout layout(unit(), 5);  // 30 elements
  std::vector<std::vector<int>> seen{std::vector<int>(5), std::vector<int>(12), std::vector<int>(2),
                                     std::vector<int>(7)};
  for (int shard = 0; shard < 5; ++shard)
    for (const auto& p : layout.pieces(Range{0, 6}.shifted(shard * 6))) {
      EXPECT_EQ(layout.range(p.param).begin + p.elements.begin, shard * 6 + p.offset);
      for (int64_t i = p.elements.begin; i < p.elements.end; ++i) ++seen[size_t(p.param)][size_t(i)];
    }
  for (const auto& param : seen)
    for (int count : param) EXPECT_EQ(count, 1);
}

TEST(FlatLayout, MayHaveFewerElementsThanShards) {
  const FlatLayout layout({"small", {{"one", {1}, {}, true}}}, 5);
  EXPECT_EQ(layout.numel(), 5);
  EXPECT_TRUE(layout.pieces({1, 2}).empty());
}

}  // namespace
}  // namespace cleave
