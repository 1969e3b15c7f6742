#include "launcher/rank_lines.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(RankLines, AnErrorOfSeveralRanksIsPassedOnOnce) {
  RankLines lines(3);
  EXPECT_EQ(lines.take(1, "error: rank 1: no such file\n", true), "[1] error: rank 1: no such file\n");
  EXPECT_FALSE(lines.take(0, "error: rank 0: no such file\n", true));
  EXPECT_FALSE(lines.take(2, "error: no such file\n", true));
  EXPECT_TRUE(lines.take(2, "error: rank 2: another\n", true));
  EXPECT_TRUE(lines.take(0, "the same line\n", true));
  EXPECT_TRUE(lines.take(1, "the same line\n", true));  // no error
  EXPECT_TRUE(lines.take(0, "error: no such file\n", false));
}

TEST(RankLines, TheIndentedLinesOfAnErrorBelongToIt) {
  RankLines lines(2);
  lines.take(0, "error: rank 0: does not fit:\n", true);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(lines.take(0, "  a row\n", true));
  EXPECT_EQ(lines.error_out_of_sight(0), "");
  EXPECT_FALSE(lines.take(1, "error: rank 1: does not fit:\n", true));
  EXPECT_FALSE(lines.take(1, "  a row\n", true));
  EXPECT_TRUE(lines.take(1, "something else\n", true));
  EXPECT_TRUE(lines.take(1, "  indented\n", true));
}

TEST(RankLines, AnErrorOutOfSightIsKept) {
  RankLines lines(2);
  lines.take(1, "error: rank 1: the cause\n", true);
  for (int i = 0; i < 9; ++i) lines.take(1, "a table that explains it\n", true);
  EXPECT_EQ(lines.error_out_of_sight(1), "");  // it is right there
  for (int i = 0; i < 2; ++i) lines.take(0, "rank 0 talks on\n", false);
  EXPECT_EQ(lines.error_out_of_sight(1), "");  // one of the last three lines
  lines.take(0, "rank 0 talks on\n", false);
  EXPECT_EQ(lines.error_out_of_sight(1), "the cause");
  EXPECT_EQ(lines.error_out_of_sight(0), "");
}

TEST(RankLines, OfAProgramThatMarksNoErrorsTheLastLineCounts) {
  RankLines lines(2);
  lines.take(0, "Traceback:\n", true);
  lines.take(0, "ValueError: rank 7 of 2\n", true);
  for (int i = 0; i < 5; ++i) lines.take(1, "x\n", false);
  EXPECT_EQ(lines.error_out_of_sight(0), "ValueError: rank 7 of 2");
}

}  // namespace
}  // namespace cleave
