#include "core/range.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(Range, IntersectsToTheCommonPart) {
  EXPECT_EQ(intersect({0, 10}, {5, 20}), (Range{5, 10}));
  EXPECT_EQ(intersect({5, 20}, {0, 10}), (Range{5, 10}));
  EXPECT_TRUE(intersect({0, 3}, {3, 9}).empty());
  EXPECT_TRUE(intersect({7, 9}, {0, 3}).empty());
  EXPECT_EQ(intersect({0, 10}, {2, 4}), (Range{2, 4}));
}

TEST(Range, RoundsUp) {
  EXPECT_EQ(ceil_div(0, 4), 0);
  EXPECT_EQ(ceil_div(1, 4), 1);
  EXPECT_EQ(ceil_div(8, 4), 2);
  EXPECT_EQ(round_up(9, 8), 16);
  EXPECT_EQ((Range{2, 5}.shifted(10)), (Range{12, 15}));
}

TEST(Range, PartsCoverEverythingOnce) {
  for (int64_t numel : {0, 1, 7, 8, 9, 1000})
    for (int64_t parts : {1, 2, 3, 8, 13}) {
      int64_t at = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range r = part(numel, parts, i);
        EXPECT_EQ(r.begin, at);
        EXPECT_LE(r.size(), ceil_div(numel, parts));
        at = r.end;
      }
      EXPECT_EQ(at, numel);
    }
}

TEST(Range, ExactDivisionRejectsARemainder) {
  EXPECT_EQ(div_exact(12, 4), 3);
  EXPECT_THROW(div_exact(13, 4), Error);
  EXPECT_THROW(div_exact(13, 0), Error);
}

}  // namespace
}  // namespace cleave
