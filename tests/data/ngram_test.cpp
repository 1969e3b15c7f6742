#include "data/ngram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "core/philox.h"
#include "tests/scratch.h"

namespace cleave::data {
namespace {

std::span<const uint8_t> bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::vector<uint8_t> random_bytes(size_t count, uint64_t seed) {
  std::vector<uint8_t> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = uint8_t(Philox{.seed = seed}.word(i) >> 24);
  return out;
}

// Calculated by hand. Order 1: 5 bytes, 3 kinds. Order 2: b follows a twice; a and c follow b once each.
TEST(Ngram, MatchesTheFormulaOnATinyText) {
  const NgramModel model(bytes("ababc"), 2);
  double p[2];
  auto unigram = [](double count) { return (count + 3.0 / 256) / (5 + 3); };
  model.probabilities(bytes("a"), 'b', p);
  EXPECT_DOUBLE_EQ(p[0], unigram(2));
  EXPECT_DOUBLE_EQ(p[1], (2 + 1 * unigram(2)) / (2 + 1));
  model.probabilities(bytes("xb"), 'a', p);
  EXPECT_DOUBLE_EQ(p[1], (1 + 2 * unigram(2)) / (2 + 2));
  model.probabilities(bytes("b"), 'b', p);
  EXPECT_DOUBLE_EQ(p[1], (0 + 2 * unigram(2)) / (2 + 2));
  model.probabilities(bytes("c"), 'a', p);  // c has no successor: uses the shorter order
  EXPECT_DOUBLE_EQ(p[1], unigram(2));
  model.probabilities(bytes(""), 'z', p);
  EXPECT_DOUBLE_EQ(p[0], unigram(0));
  EXPECT_DOUBLE_EQ(p[1], unigram(0));
}

// After training on n equal bytes, T = 1 for every context, so each order only increases certainty.
TEST(Ngram, LossesOfAConstantTextHaveAClosedForm) {
  const int n = 1000;
  const std::string text(size_t(n), 'a');
  const auto losses = ngram_losses(bytes(text), bytes("aaaaaa"), 3);
  const double p1 = (n + 1.0 / 256) / (n + 1), p2 = ((n - 1) + p1) / n, p3 = ((n - 2) + p2) / (n - 1);
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_NEAR(losses[0], -std::log(p1), 1e-12);
  EXPECT_NEAR(losses[1], -(std::log(p1) + 5 * std::log(p2)) / 6, 1e-12);
  EXPECT_NEAR(losses[2], -(std::log(p1) + std::log(p2) + 4 * std::log(p3)) / 6, 1e-12);
}

TEST(Ngram, ProbabilitiesOfEveryContextSumToOne) {
  const std::string_view text = "the cat sat on the mat; the rat ate the cat";
  const NgramModel model(bytes(text), 5);
  for (std::string_view before : {"", "t", "the ", "e cat", "xyzzy", "zzhe ", "q"}) {
    double sums[5] = {};
    for (int c = 0; c < 256; ++c) {
      double p[5];
      model.probabilities(bytes(before), uint8_t(c), p);
      for (int n = 0; n < 5; ++n) sums[n] += p[n];
    }
    for (double sum : sums) EXPECT_NEAR(sum, 1, 1e-12) << before;
  }
}

TEST(Ngram, NothingPredictsUniformBytes) {
  const auto losses = ngram_losses(random_bytes(200000, 1), random_bytes(20000, 2), 5);
  EXPECT_NEAR(losses[0], std::log(256), 0.01);
  for (double loss : losses) {
    EXPECT_GT(loss, std::log(256) - 0.01);
    EXPECT_LT(loss, std::log(256) * 1.15);
  }
}

TEST(Ngram, LongerContextsHelpIfTheTextNeedsThem) {
  // The byte after "aX" or "bX" depends on the byte before X only: two bytes of context are necessary and
  // sufficient.
  std::string text;
  for (uint64_t i = 0; i < 20000; ++i) text += Philox{.seed = 4}.word(i) & 1 ? "axp" : "bxq";
  const auto losses = ngram_losses(bytes(text), bytes(std::string_view(text).substr(0, 6000)), 5);
  EXPECT_GT(losses[1], std::log(2) * 2 / 3 - 0.02);  // the first byte of three, and the last
  EXPECT_NEAR(losses[2], std::log(2) / 3, 0.01);     // only the first
  EXPECT_NEAR(losses[4], std::log(2) / 3, 0.01);
}

TEST(Ngram, IsDeterministic) {
  const auto train = random_bytes(50000, 1), validation = random_bytes(1000, 2);
  EXPECT_EQ(ngram_losses(train, validation), ngram_losses(train, validation));
}

TEST(Ngram, RejectsEmptyTexts) {
  expect_error(Exit::data, {"0 and 1 bytes"}, [] { ngram_losses({}, bytes("a")); });
  expect_error(Exit::data, {"1 and 0 bytes"}, [] { ngram_losses(bytes("a"), {}); });
  expect_error(Exit::internal, {"order 6"}, [] { NgramModel(bytes("a"), 6); });
}

}  // namespace
}  // namespace cleave::data
