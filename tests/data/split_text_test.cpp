#include "data/split_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/philox.h"

namespace cleave::data {
namespace {

std::string lines(int count, int longest, uint64_t seed) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += std::string(size_t(Philox{.seed = seed}.word(uint64_t(i)) % uint32_t(longest)), 'x') + "\n";
  return text;
}

std::vector<Range> merged(const TextSplit& split) {
  std::vector<Range> all = split.train;
  all.insert(all.end(), split.validation.begin(), split.validation.end());
  std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
  return all;
}

void expect_covers(const TextSplit& split, int64_t size) {
  int64_t at = 0;
  for (const Range& range : merged(split)) {
    EXPECT_EQ(range.begin, at);
    EXPECT_FALSE(range.empty());
    at = range.end;
  }
  EXPECT_EQ(at, size);
}

TEST(SplitText, PartsAreDisjointAndCoverTheText) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = lines(400, 60, seed);
    expect_covers(split_text(text), int64_t(text.size()));
  }
  for (size_t size = 0; size < 70; ++size) {
    expect_covers(split_text(std::string(size, 'x')), int64_t(size));
    expect_covers(split_text(std::string(size, '\n')), int64_t(size));
    expect_covers(split_text(lines(int(size), 3, size)), int64_t(lines(int(size), 3, size).size()));
  }
}

TEST(SplitText, CutsAtLineEnds) {
  const std::string text = lines(1000, 80, 5);
  for (const Range& range : merged(split_text(text))) EXPECT_EQ(text[size_t(range.end - 1)], '\n');
}

TEST(SplitText, EveryTenthOfTwentyEqualBlocksIsValidation) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += std::string(9, char('a' + i)) + "\n";
  const TextSplit split = split_text(text);
  EXPECT_EQ(split.train, (std::vector<Range>{{0, 90}, {100, 190}}));
  EXPECT_EQ(split.validation, (std::vector<Range>{{90, 100}, {190, 200}}));
  EXPECT_EQ(cut_out(text, split.validation), "jjjjjjjjj\nttttttttt\n");
}

TEST(SplitText, ATenthIsValidation) {
  const std::string text = lines(5000, 80, 6);
  EXPECT_NEAR(double(cut_out(text, split_text(text).validation).size()) / double(text.size()), 0.1, 0.005);
}

TEST(SplitText, ACutWithoutALineEndNearbyDoesNotMove) {
  const TextSplit split = split_text(std::string(200, 'x'));
  EXPECT_EQ(split.validation, (std::vector<Range>{{90, 100}, {190, 200}}));
}

TEST(SplitText, TextsHaveBothPartsFromTwentyBytesOn) {
  for (size_t size = 20; size < 60; ++size) {
    EXPECT_FALSE(split_text(std::string(size, 'x')).validation.empty()) << size;
    EXPECT_FALSE(split_text(std::string(size, '\n')).validation.empty()) << size;
    EXPECT_FALSE(split_text(std::string(size, 'x')).train.empty()) << size;
  }
  EXPECT_TRUE(split_text("").train.empty());
}

}  // namespace
}  // namespace cleave::data
