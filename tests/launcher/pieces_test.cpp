// Lines in pieces, as they pass through srun, which interleaves those of several hosts.
#include "launcher/pieces.h"

#include <gtest/gtest.h>

#include "launcher/passed_signals.h"

namespace cleave::launcher {
namespace {

std::vector<std::string> lines_of(std::string text) {
  std::vector<std::string> lines;
  for (size_t end; (end = text.find('\n')) != text.npos; text.erase(0, end + 1))
    lines.push_back(text.substr(0, end + 1));
  EXPECT_EQ(text, "");
  return lines;
}

TEST(Pieces, AreBoundedAndReassembled) {
  for (const size_t length : {0, 1, 994, 995, 996, 997, 1987, 1988, 1989, 65536}) {
    const std::string text(length, 'x');
    Pieces pieces;
    std::optional<std::string> whole;
    for (const std::string& line : lines_of(in_pieces("[12] " + text + "\n"))) {
      EXPECT_LE(line.size(), kLongestPiece);
      EXPECT_FALSE(whole);
      const auto [rank, at] = rank_of_line(line, 13);
      EXPECT_EQ(rank, 12);
      whole = pieces.take(rank, line.substr(at));
    }
    EXPECT_EQ(whole, text + "\n") << length;
  }
}

TEST(Pieces, OfSeveralRanksMayBeInterleaved) {
  Pieces pieces;
  EXPECT_FALSE(pieces.take(0, "a\x1d\n"));
  EXPECT_FALSE(pieces.take(1, "x\x1d\n"));
  EXPECT_EQ(pieces.take(2, "whole\n"), "whole\n");
  EXPECT_EQ(pieces.take(0, "b\n"), "ab\n");
  EXPECT_EQ(pieces.take(1, "y\n"), "xy\n");
  EXPECT_EQ(pieces.take(0, "\n"), "\n");
}

TEST(Pieces, AreNotMadeOfLinesWithoutARank) {
  const std::string words(3000, 'x');
  EXPECT_EQ(in_pieces(words + "\n"), words + "\n");
  EXPECT_EQ(in_pieces("[" + words + "] a\n"), "[" + words + "] a\n");
  EXPECT_EQ(rank_of_line("[13] x\n", 13).first, -1);
  EXPECT_EQ(rank_of_line("[1]x\n", 13).first, -1);
  EXPECT_EQ(rank_of_line("", 13).first, -1);
}

TEST(PassedSignals, ForwardsEachRequestForRecordsAlsoAfterAStop) {
  PassedSignals s;
  EXPECT_EQ(s.take(SIGQUIT), SIGQUIT);
  EXPECT_EQ(s.take(SIGQUIT), SIGQUIT);
  EXPECT_FALSE(s.asked_to_stop());
  EXPECT_EQ(s.take(SIGINT), SIGINT);
  EXPECT_EQ(s.take(SIGQUIT), SIGQUIT);
  EXPECT_FALSE(s.killed());
}

TEST(PassedSignals, CountsTheSameRequestOfAClusterOnce) {
  const auto now = PassedSignals::Time() + std::chrono::hours(1);
  PassedSignals s;
  EXPECT_EQ(s.take(SIGUSR1, now), SIGUSR1);
  EXPECT_EQ(s.take(SIGUSR1, now), 0);
  EXPECT_EQ(s.take(SIGTERM, now), SIGTERM);
  EXPECT_EQ(s.take(SIGTERM, now + kSameWish / 2), 0);  // sent to both, and forwarded
  EXPECT_EQ(s.take(SIGTERM, now + 2 * kSameWish), SIGKILL);
  PassedSignals person;
  EXPECT_EQ(person.take(SIGINT, now), SIGINT);
  EXPECT_EQ(person.take(SIGINT, now), SIGKILL);
}

}  // namespace
}  // namespace cleave::launcher
