#include "runtime/step/stragglers.h"

#include <gtest/gtest.h>

namespace cleave::runtime {
namespace {

const std::vector<std::string> kHosts = {"a", "a", "b", "b"};

RankTimes times(double step, double forward, double backward, double update) {
  return {step, {forward, backward, update}};
}

TEST(Stragglers, SubtractWaitsForPeersFromTheStep) {
  // Every rank transfers for 0.1 s; ranks 0, 1 and 3 wait for rank 2 during 0.4 s of the backward.
  const std::vector<RankTimes> ranks = {times(1, 0, 0.5, 0), times(1, 0, 0.5, 0), times(1, 0, 0.1, 0),
                                        times(1, 0, 0.5, 0)};
  const std::vector<double> own = own_times(ranks, std::vector<int>{0, 0, 0, 0});
  EXPECT_DOUBLE_EQ(own[0], 0.6);
  EXPECT_DOUBLE_EQ(own[2], 1.0);
}

TEST(Stragglers, AreNamedWithHostAndPhaseAfterTheGivenStepsOnce) {
  Stragglers s(0.25, 3, {0, 0, 0, 0}, kHosts);
  const std::vector<RankTimes> slow = {times(1, 0, 0.5, 0), times(1, 0, 0.5, 0), times(1, 0, 0.1, 0),
                                       times(1, 0, 0.5, 0)},
                               even(4, times(1, 0, 0.1, 0));
  EXPECT_TRUE(s.see(slow).empty());
  EXPECT_TRUE(s.see(slow).empty());
  const std::vector<std::string> lines = s.see(slow);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0],
      "rank 2 on b is slower than its peers in 3 consecutive steps: 1 s of own time per step, the others "
      "0.6 s; they wait for it in the backward");
  EXPECT_TRUE(s.see(slow).empty()) << "only once";
  EXPECT_TRUE(s.see(even).empty());
  s.see(slow), s.see(slow);
  EXPECT_EQ(s.see(slow).size(), 1u) << "again after it was fast";
}

TEST(Stragglers, AreNotRanksWithinTheShare) {
  Stragglers s(0.25, 1, {0, 0}, {"a", "b"});
  EXPECT_TRUE(s.see(std::vector{times(1, 0.1, 0.15, 0), times(1, 0.05, 0.05, 0)}).empty()) << "1 of 0.85";
  EXPECT_EQ(s.see(std::vector{times(1, 0.2, 0.15, 0), times(1, 0.05, 0.05, 0)}).size(), 1u) << "1 of 0.75";
}

// Stages of a pipeline wait for each other by design.
TEST(Stragglers, AreComparedOnlyWithRanksThatDoTheSame) {
  Stragglers s(0.1, 1, {0, 1}, {"a", "b"});
  EXPECT_TRUE(s.see(std::vector{times(1, 0, 0.9, 0), times(1, 0, 0.1, 0)}).empty());
}

}  // namespace
}  // namespace cleave::runtime
