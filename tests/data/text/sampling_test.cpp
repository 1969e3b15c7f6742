// Compares frequencies of drawn tokens with closed forms from the definitions of the options.
#include "data/text/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/scratch.h"

namespace cleave::text {
namespace {

constexpr int kDraws = 20'000;

// Frequencies of tokens over many draws.
std::vector<double> shares(const std::vector<float>& logits, const Sampling& s,
                           std::vector<int32_t> before = {}) {
  std::vector<double> out(logits.size());
  for (int i = 0; i < kDraws; ++i) out[size_t(next_token(logits, before, s, uint64_t(i)))] += 1;
  for (double& share : out) share /= kDraws;
  return out;
}

// Allows four standard deviations of a share after kDraws draws; exact for 0 and 1.
void expect_shares(const std::vector<double>& got, const std::vector<double>& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(got[i], wanted[i], 4 * std::sqrt(wanted[i] * (1 - wanted[i]) / kDraws)) << i;
}

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(float(std::log(p)));
  return out;
}

TEST(Sampling, DrawsWithTheProbabilitiesOfTheLogits) {
  expect_shares(shares(logits_of({0.1, 0.6, 0.3}), {.temperature = 1}), {0.1, 0.6, 0.3});
}

TEST(Sampling, TemperatureOneHalfSquaresProbabilities) {
  const double sum = 0.01 + 0.36 + 0.09;
  expect_shares(shares(logits_of({0.1, 0.6, 0.3}), {.temperature = 0.5}),
                {0.01 / sum, 0.36 / sum, 0.09 / sum});
}

TEST(Sampling, TemperatureZeroTakesTheMostLikely) {
  expect_shares(shares(logits_of({0.1, 0.3, 0.3, 0.2}), {.temperature = 0}), {0, 1, 0, 0});
}

TEST(Sampling, TopKKeepsTheMostLikely) {
  expect_shares(shares(logits_of({0.1, 0.6, 0.3}), {.temperature = 1, .top_k = 2}), {0, 2.0 / 3, 1.0 / 3});
}

TEST(Sampling, TopPKeepsTheSmallestSetWithThatProbability) {
  const std::vector<float> logits = logits_of({0.15, 0.5, 0.05, 0.3});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.4}), {0, 1, 0, 0});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.7}), {0, 0.625, 0, 0.375});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0.9}), {0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95});
  expect_shares(shares(logits, {.temperature = 1, .top_p = 0}), {0, 1, 0, 0});
  // top_p of the tokens that top_k left: 0.5 / 0.8 is 0.625.
  expect_shares(shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6}), {0, 1, 0, 0});
}

TEST(Sampling, APenaltyDividesPositiveLogitsAndMultipliesOthersOnce) {
  const std::vector<float> logits = {2, -1, 1, 0};
  std::vector<double> wanted;
  double sum = 0;
  for (const double l : {1.0, -2.0, 1.0, 0.0}) wanted.push_back(std::exp(l)), sum += std::exp(l);
  for (double& w : wanted) w /= sum;
  expect_shares(shares(logits, {.temperature = 1, .repetition_penalty = 2}, {0, 1, 0, 0}), wanted);
  EXPECT_EQ(next_token(logits, std::vector<int32_t>{0}, {.temperature = 0, .repetition_penalty = 3}, 0), 2)
      << "the likeliest after the penalty";
}

TEST(Sampling, TiesGoToLowerIds) {
  expect_shares(shares(std::vector<float>(9, 1.5f), {.temperature = 1, .top_k = 2}),
                {0.5, 0.5, 0, 0, 0, 0, 0, 0, 0});
  expect_shares(shares(std::vector<float>(4, 1.5f), {.temperature = 1, .top_p = 0.49}), {0.5, 0.5, 0, 0});
}

TEST(Sampling, RejectsNonFiniteLogits) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinite = std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 1.0})
    for (const float bad : {kNan, kInfinite})
      expect_error(Exit::training, {"logits: not finite"}, [&] {
        next_token(std::vector<float>{1, bad, 2}, {}, {.temperature = temperature}, 0);
      });
  EXPECT_EQ(next_token(std::vector<float>{-kInfinite, 1}, {}, {.temperature = 1}, 0), 1) << "never drawn";
}

TEST(Sampling, IsAFunctionOfSeedAndIndex) {
  const std::vector<float> logits(100, 0);
  const auto draw = [&](uint64_t seed, uint64_t index) {
    return next_token(logits, {}, {.seed = seed}, index);
  };
  EXPECT_EQ(draw(1, 5), draw(1, 5));
  int same = 0;
  for (uint64_t i = 0; i < 1000; ++i) same += draw(1, i) == draw(2, i);
  EXPECT_LT(same, 40) << "10 are expected";
}

}  // namespace
}  // namespace cleave::text
