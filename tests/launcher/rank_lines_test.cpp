#include "launcher/rank_lines.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace cleave::launcher {
namespace {

TEST(RankLines, AnErrorOfSeveralRanksIsPrintedOnce) {
  RankLines lines(3);
  EXPECT_EQ(lines.take(1, "error: rank 1: no such file\n", true), "[1] error: rank 1: no such file\n");
  EXPECT_FALSE(lines.take(0, "error: rank 0: no such file\n", true));
  EXPECT_FALSE(lines.take(2, "error: no such file\n", true));
  EXPECT_TRUE(lines.take(2, "error: rank 2: another\n", true));
  EXPECT_TRUE(lines.take(0, "the same line\n", true));
  EXPECT_TRUE(lines.take(1, "the same line\n", true));  // not an error
  EXPECT_TRUE(lines.take(0, "error: no such file\n", false));
}

TEST(RankLines, TheIndentedLinesOfAnErrorBelongToIt) {
  RankLines lines(2);
  lines.take(0, "error: rank 0: does not fit:\n", true);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(lines.take(0, "  a row\n", true));
  EXPECT_EQ(lines.error_of(0, 3), "does not fit:");
  EXPECT_FALSE(lines.take(1, "error: rank 1: does not fit:\n", true));
  EXPECT_FALSE(lines.take(1, "  a row\n", true));
  EXPECT_TRUE(lines.take(1, "something else\n", true));
  EXPECT_TRUE(lines.take(1, "  indented\n", true));
}

TEST(RankLines, TheErrorOfARankIsKeptDespiteLaterLines) {
  RankLines lines(2);
  lines.take(1, "error: rank 1: the cause\n", true);
  for (int i = 0; i < 9; ++i) lines.take(1, "a table that explains it\n", true);
  lines.take(0, "rank 0 talks on\n", false);
  EXPECT_EQ(lines.error_of(1, 4), "the cause");
  EXPECT_EQ(lines.error_of(0, 4), "");
}

TEST(RankLines, WithoutMarkedErrorsTheLastLineCounts) {
  RankLines lines(2);
  lines.take(0, "Traceback:\n", true);
  lines.take(0, "ValueError: rank 7 of 2\n", true);
  for (int i = 0; i < 5; ++i) lines.take(1, "x\n", false);
  EXPECT_EQ(lines.error_of(0, 1), "ValueError: rank 7 of 2");
}

TEST(RankLines, TheExceptionOfATracebackCountsDespiteItsOtherLinesAndWarnings) {
  RankLines lines(2);
  for (const char* line :
       {"ValueError: of an exception that the next one handles\n", "Traceback (most recent call last):\n",
        "  File \"x.py\", line 1\n", "KeyError: 'a'\n", "\n",
        "During handling of the above exception, another exception occurred:\n", "\n",
        "Traceback (most recent call last):\n", "  File \"x.py\", line 2\n", "    f()\n",
        "cleave.errors.UsageError: ds.json: has errors:\n", "error: ds.json:1:3: no\n",
        "warning: ds.json:2:3: off\n", "sys:1: ResourceWarning: unclosed\n"}) {
    lines.take(0, std::string("[rank0]: ") + line, true);
    lines.take(1, line, true);
  }
  EXPECT_EQ(lines.error_of(0, 2), "cleave.errors.UsageError: ds.json: has errors: error: ds.json:1:3: no");
  EXPECT_EQ(lines.error_of(1, 2), "ds.json:1:3: no") << "marked";
  for (int i = 0; i < 70; ++i) lines.take(0, "[rank0]: the script goes on\n", true);
  EXPECT_EQ(lines.error_of(0, 1), "[rank0]: the script goes on") << "it was handled";
}

TEST(RankLines, OutputBeforeAKillIsNotTheReason) {
  RankLines lines(2);
  lines.take(0, "text.txt: uses tokens of an earlier run\n", true);
  lines.take(1, "error: no space left\n", true);
  for (const int signal : {SIGKILL, SIGTERM, SIGINT}) {
    EXPECT_EQ(lines.error_of(0, 128 + signal), "");
    EXPECT_EQ(lines.error_of(1, 128 + signal), "no space left");
  }
  EXPECT_EQ(lines.error_of(0, 128 + SIGABRT), "text.txt: uses tokens of an earlier run");
}

// All ranks have the same error, and one of them prints it; another one may end first.
TEST(RankLines, AmongRanksWithEqualCodesTheOneWithAnErrorIsTheCause) {
  RankLines lines(3);
  lines.take(1, "a word\n", true);
  lines.take(2, "error: no space left\n", true);
  EXPECT_EQ(lines.who_said(1, {{1, 4}, {0, 4}, {2, 4}}), 2);
  EXPECT_EQ(lines.who_said(1, {{1, 4}, {0, 4}, {2, 6}}), 1);
  EXPECT_EQ(lines.who_said(2, {{2, 4}, {1, 4}}), 2);
  EXPECT_EQ(lines.who_said(-1, {}), -1);
}

TEST(RankLines, AnEarlyStopIsShownOnceAndKnown) {
  const std::string line = std::string(kStoppedEarly) + "\n";
  RankLines lines(3);
  lines.take(0, line, false);
  EXPECT_FALSE(lines.stopped_early()) << "from standard output";
  EXPECT_EQ(lines.take(1, line, true), "[1] " + line);
  EXPECT_TRUE(lines.stopped_early());
  EXPECT_EQ(lines.take(2, line, true), std::nullopt);
}

TEST(RankLines, AdviseOnAMissingModule) {
  RankLines lines(2);
  lines.take(0, "ModuleNotFoundError: No module named 'cleave'\n", true);
  lines.take(1, "ModuleNotFoundError: No module named 'torch'\n", true);
  EXPECT_NE(lines.error_of(0, 1).find("'cleave'; add the folder python"), std::string::npos)
      << lines.error_of(0, 1);
  EXPECT_NE(lines.error_of(1, 1).find("'torch'; install it"), std::string::npos) << lines.error_of(1, 1);
}

TEST(RankLines, ARepeatedErrorNamesTheRankWhereItBegan) {
  const std::pair<const char*, int> texts[] = {{"error: rank 12: /full: cannot be written\n", 12},
                                               {"error: /full: cannot be written\n", -1},
                                               {"error: rank 3 failed: deadline\n", -1},
                                               {"error: frank 2: text\n", -1},
                                               {"error: config: rank 1: text\n", 1},
                                               {"error: a file: not saved: rank 1: text\n", 1}};
  for (const auto& [text, origin] : texts) {
    RankLines lines(1);
    lines.take(0, text, true);
    EXPECT_EQ(lines.origin_of(0), origin) << text;
  }
}

}  // namespace
}  // namespace cleave::launcher
