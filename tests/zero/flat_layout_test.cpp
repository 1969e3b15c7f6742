#include "zero/flat_layout.h"

#include <gtest/gtest.h>

namespace cleave::zero {
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

TEST(FlatLayout, AlignsTheShardsOfAllButSmallUnits) {
  for (int64_t used : {4095, 4096, 4097, 40'000, 7'087'872, 38'633'472})
    for (int shards : {1, 2, 3, 6, 7, 8, 64}) {
      const FlatLayout layout({"u", {{"w", {used}, {}, true}}}, shards);
      const int64_t each = layout.numel() / shards;
      EXPECT_EQ(each * shards, layout.numel());
      EXPECT_GE(layout.numel(), used);
      EXPECT_LE(64 * (layout.numel() - used), used + 64 * shards) << used << " over " << shards;
      EXPECT_TRUE(used < 4096 * shards || each % 64 == 0) << used << " over " << shards;
      EXPECT_LT(layout.numel() - used, shards * (used < 4095 * shards ? 1 : 64)) << "no more than is needed";
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
    const auto groups = layout.decay_ranges(Range{0, 7}.shifted(shard * 7));
    ASSERT_LE(groups.size(), 2u);
    for (const auto& g : groups) (g.decay ? decayed : rest) += g.range.size();
  }
  EXPECT_EQ(decayed, 19);
  EXPECT_EQ(rest, 9);
}

// Parameters of 5, 12, 2 and 7 elements are laid out as 12 and 7 with decay by default, then 5 and 2.
TEST(FlatLayout, DecaysWhatTheRuleSaysWithoutMovingAParameter) {
  using Ranges = std::vector<std::pair<Range, bool>>;
  const auto ranges = [](const config::DecayRule& rule) {
    const FlatLayout layout(unit(), 4, rule), plain(unit(), 4);
    Ranges out;
    for (const auto& g : layout.decay_ranges({0, layout.numel()})) out.emplace_back(g.range, g.decay);
    for (int p = 0; p < layout.params(); ++p) {
      EXPECT_EQ(layout.range(p), plain.range(p));
      EXPECT_EQ(layout.decays(p), rule.applies_to(layout.param(p)));
    }
    return out;
  };
  EXPECT_EQ(ranges(config::DecayRule()), (Ranges{{{0, 19}, true}, {{19, 28}, false}}));
  EXPECT_EQ(ranges(config::DecayRule({"all"})), (Ranges{{{0, 28}, true}}));
  const std::string name = unit().params[3].name;
  EXPECT_EQ(ranges(config::DecayRule({name})),
            (Ranges{{{0, 12}, false}, {{12, 19}, true}, {{19, 28}, false}}));
  EXPECT_EQ(ranges(config::DecayRule({unit().params[2].name, "matrices"})),
            (Ranges{{{0, 19}, true}, {{19, 24}, false}, {{24, 28}, true}}));
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

std::vector<Cut> thirds(int dim, std::vector<int64_t> extents, int rank) {
  return {{Axis::tensor, {.dim = dim, .extents = std::move(extents), .rank = rank, .ranks = 3}}};
}

// A whole [6 + 3, 3] of fused blocks and a padded [4, 10], cut over three ranks; every element is marked with
// its index in the whole, through arbitrary slices.
TEST(FlatLayout, PiecesOfASplitParameterNameElementsOfTheWholeTensor) {
  std::vector<int> fused(27), columns(40);
  for (int rank = 0; rank < 3; ++rank) {
    const FlatLayout layout({"u",
                             {{"bias", {3}, {}, true},
                              {"fused", {2 + 1, 3}, {}, true, thirds(0, {6, 3}, rank)},
                              {"columns", {4, 4}, {}, true, thirds(1, {10}, rank)}}},
                            4);
    EXPECT_EQ(layout.range(0), (Range{0, 3}));
    EXPECT_EQ(layout.range(1), (Range{3, 12}));
    EXPECT_EQ(layout.param(1).whole_shape(), (std::vector<int64_t>{9, 3}));
    EXPECT_EQ(layout.param(2).whole_shape(), (std::vector<int64_t>{4, 10}));
    for (int shard = 0; shard < 4; ++shard) {
      const Range slice = Range{0, 8}.shifted(shard * 8);
      for (const FlatLayout::Piece& p : layout.pieces(slice))
        for (int64_t i = 0; i < p.elements.size(); ++i) {
          const int64_t local = slice.begin + p.offset + i - layout.range(p.param).begin,
                        whole = p.elements.begin + i;
          if (p.param == 1) {
            EXPECT_EQ(whole % 3, local % 3);
            EXPECT_EQ(whole / 3, local / 3 < 2 ? 2 * rank + local / 3 : 6 + rank);
            ++fused[size_t(whole)];
          } else if (p.param == 2) {
            EXPECT_EQ(whole / 10, local / 4);
            EXPECT_EQ(whole % 10, 4 * rank + local % 4);
            ++columns[size_t(whole)];
          }
        }
    }
  }
  EXPECT_EQ(fused, std::vector<int>(27, 1));
  EXPECT_EQ(columns, std::vector<int>(40, 1));
}

// A table of 5 rows, padded to 8 on a single rank: shards contain only the real rows, each once.
TEST(FlatLayout, PiecesOfAPaddedParameterOfOneRankLeaveThePaddingOut) {
  const FlatLayout layout({"u", {{"table", {8, 3}, {}, true, {{Axis::tensor, {.dim = 0, .extents = {5}}}}}}},
                          4);
  EXPECT_EQ(layout.numel(), 24);
  EXPECT_EQ(layout.param(0).whole_shape(), (std::vector<int64_t>{5, 3}));
  std::vector<FlatLayout::Piece> pieces;
  for (int shard = 0; shard < 4; ++shard)
    for (const FlatLayout::Piece& p : layout.pieces(Range{0, 6}.shifted(shard * 6))) pieces.push_back(p);
  EXPECT_EQ(pieces, (std::vector<FlatLayout::Piece>{{0, {0, 6}, 0}, {0, {6, 12}, 0}, {0, {12, 15}, 0}}));
}

TEST(FlatLayout, CutElementsAreOneRangeAndOthersOneWithDecayAndOneWithout) {
  const std::vector<Cut> cut = {{Axis::tensor, {.extents = {8}, .ranks = 2}}};
  const FlatLayout layout({"u",
                           {{"norm", {2}, {}, false},
                            {"q", {4, 2}, {}, true, cut},
                            {"table", {5}, {}, true},
                            {"q_bias", {4}, {}, false, cut}}},
                          1);
  EXPECT_EQ(layout.range(2), (Range{0, 5}));
  EXPECT_EQ(layout.range(1), (Range{5, 13}));
  EXPECT_EQ(layout.range(3), (Range{13, 17}));
  EXPECT_EQ(layout.range(0), (Range{17, 19}));
  EXPECT_EQ(layout.cut_by({Axis::tensor}), (std::vector<Range>{{5, 17}}));
  const auto summed = [&](Range slice, bool cut_rows) {
    return layout.summed(slice, Axis::tensor, cut_rows);
  };
  EXPECT_EQ(summed({0, 19}, true), (std::vector<Range>{{0, 5}, {17, 19}}));
  EXPECT_EQ(summed({3, 18}, true), (std::vector<Range>{{0, 2}, {14, 15}}));
  EXPECT_TRUE(summed({5, 17}, true).empty());
  EXPECT_TRUE(summed({0, 19}, false).empty());
  EXPECT_EQ(layout.summed({0, 19}, Axis::sequence, true).size(), 4u) << "that axis cuts nothing";
  EXPECT_TRUE(FlatLayout({"whole", {{"norm", {2}, {}, false}}}, 1).cut_by({Axis::tensor}).empty());
}

TEST(FlatLayout, SumsTheGradientsOfParametersThatAnAxisUsesInPart) {
  const ParamSpec keys{"k", {6}, {}, true, {{Axis::tensor}}};
  const ParamSpec queries{"q", {8}, {}, true, {{Axis::tensor, {.extents = {16}, .ranks = 2}}}};
  const FlatLayout shared({"u", {{"table", {2}, {}, true}, keys, queries}}, 1);
  EXPECT_EQ(shared.summed({0, 16}, Axis::tensor, false), (std::vector<Range>{{2, 8}}));
  EXPECT_EQ(shared.summed({3, 16}, Axis::tensor, false), (std::vector<Range>{{0, 5}}));
  EXPECT_TRUE(shared.summed({0, 16}, Axis::sequence, false).empty()) << "along it all ranks have the same";
  const FlatLayout frozen({"u", {{"table", {2}, {}, true}, keys}, true}, 1);
  EXPECT_TRUE(frozen.summed({0, 8}, Axis::tensor, false).empty());
  EXPECT_TRUE(frozen.summed({0, 8}, Axis::tensor, true).empty());
}

TEST(FlatLayout, MayHaveFewerElementsThanShards) {
  const FlatLayout layout({"small", {{"one", {1}, {}, true}}}, 5);
  EXPECT_EQ(layout.numel(), 5);
  EXPECT_TRUE(layout.pieces({1, 2}).empty());
}

}  // namespace
}  // namespace cleave::zero
