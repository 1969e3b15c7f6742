#include "data/blend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/scratch.h"

namespace cleave::data {
namespace {

std::vector<int64_t> shares(std::vector<double> weights) { return Blend::shares_of(weights); }

TEST(Blend, SharesAreTheWeightsAsIntegers) {
  EXPECT_EQ(shares({1}), (std::vector<int64_t>{1}));
  EXPECT_EQ(shares({0.7, 0.3}), (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(shares({2, 1, 1}), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(shares({0.5, 0.25, 0.25}), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(shares({0.000001, 0.999999}), (std::vector<int64_t>{1, 999999}));
  EXPECT_EQ(shares({4e9, 2e9}), (std::vector<int64_t>{2, 1}));
}

TEST(Blend, OtherWeightsAreRoundedToMillionthsOfTheirSum) {
  const std::vector<double> weights{std::sqrt(2.0), 3.14159265358979, 1e-3};
  const std::vector<int64_t> got = shares(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0),
               period = double(std::accumulate(got.begin(), got.end(), int64_t{0}));
  EXPECT_LE(period, 1e6);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(double(got[i]) / period, weights[i] / sum, 2e-6) << i;
}

TEST(Blend, RejectsInvalidWeights) {
  for (const double bad : {0.0, -1.0, std::nan(""), double(INFINITY)})
    expect_error(Exit::usage, {"above 0"}, [&] { shares({1, bad}); });
  expect_error(Exit::usage, {"is below a millionth of the sum"}, [&] { shares({1, 1e-7}); });
}

// Counts at every prefix: always less than one sample away from the shares, with every sample of a source
// once, in order.
TEST(Blend, SharesAreExactToLessThanOneSampleAtEveryPrefix) {
  const std::vector<std::vector<int64_t>> cases{{1},
                                                {1, 1},
                                                {7, 3},
                                                {3, 7},
                                                {1, 999},
                                                {5, 1, 1, 1, 1},
                                                {33, 33, 34},
                                                {1, 2, 4, 8, 16, 32},
                                                {97, 89, 83},
                                                {1, 1, 1, 1, 1, 1, 1},
                                                {10, 1, 10, 1, 10}};
  for (const auto& of : cases) {
    const Blend blend(of);
    const int64_t period = std::accumulate(of.begin(), of.end(), int64_t{0});
    EXPECT_EQ(blend.period(), period);
    std::vector<int64_t> given(of.size(), 0);
    for (int64_t position = 0; position < 3 * period; ++position) {
      const Blend::SourceSample at = blend.at(position);
      ASSERT_EQ(at.sample, given[size_t(at.source)]++) << "position " << position;
      for (size_t s = 0; s < of.size(); ++s) {
        // |given - (position + 1) share / period| < 1, in whole numbers
        ASSERT_LT(std::abs(given[s] * period - (position + 1) * of[s]), period)
            << "source " << s << " of " << of.size() << ", position " << position;
      }
    }
  }
}

// The example of docs/data.md, and a position that no loop could reach.
TEST(Blend, TheOrderIsAFunctionOfThePosition) {
  const Blend blend({7, 3});
  std::string order;
  for (int64_t position = 0; position < 10; ++position) order += char('a' + blend.at(position).source);
  EXPECT_EQ(order, "aabaabaaab");
  EXPECT_EQ(blend.at(70'000'000'000'002).source, 1);
  EXPECT_EQ(blend.at(70'000'000'000'002).sample, 21'000'000'000'000);
  EXPECT_EQ(blend.at(70'000'000'000'003).sample, 49'000'000'000'002);
}

}  // namespace
}  // namespace cleave::data
