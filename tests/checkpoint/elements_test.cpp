#include "checkpoint/elements.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// Ranges and strided runs of a tensor with 14 elements.
std::vector<checkpoint::Elements> many_elements() {
  std::vector<checkpoint::Elements> all;
  for (int64_t begin : {0, 1, 4})
    for (int64_t size : {1, 3, 10}) all.push_back({{begin, begin + size}});
  for (int64_t begin : {0, 1, 3})
    for (int64_t run : {1, 2})
      for (int64_t stride : {3, 4, 5})
        for (int64_t count : {1, 2, 3})
          if (const int64_t end = begin + (count - 1) * stride + run; end <= 14)
            all.push_back({{begin, end}, run, stride});
  return all;
}

TEST(EachOverlap, EqualsAComparisonElementByElement) {
  for (const checkpoint::Elements& wanted : many_elements())
    for (const checkpoint::Elements& stored : many_elements()) {
      const std::vector<int64_t> w = indices_of(wanted), s = indices_of(stored);
      ASSERT_EQ(wanted.numel(), int64_t(w.size()));
      for (int64_t begin : {int64_t{0}, wanted.numel() / 2})
        for (int64_t end : {begin + 1, wanted.numel()}) {
          std::map<int64_t, int64_t> reference, found;  // place in wanted: place in stored
          for (int64_t i = begin; i < end; ++i)
            for (size_t j = 0; j < s.size(); ++j)
              if (w[size_t(i)] == s[j]) reference[i] = int64_t(j);
          checkpoint::each_overlap(wanted, {begin, end}, stored, [&](int64_t to, int64_t from, int64_t n) {
            for (int64_t i = 0; i < n; ++i) EXPECT_TRUE(found.emplace(to + i, from + i).second);
          });
          EXPECT_EQ(found, reference);
        }
    }
}

TEST(EachOnce, HoldsForRangesColumnsAndBothTogether) {
  const std::vector<checkpoint::Elements> apart = {{{6, 12}}, {{0, 6}}};
  EXPECT_NO_THROW(checkpoint::require_each_once(apart, 12, "w"));
  const std::vector<checkpoint::Elements> cut = {columns(4, 3, 1, 3), columns(4, 3, 0, 1)};
  EXPECT_NO_THROW(checkpoint::require_each_once(cut, 12, "w"));
  const std::vector<checkpoint::Elements> mixed = {columns(2, 3, 0, 2), columns(2, 3, 2, 3), {{6, 12}}};
  EXPECT_NO_THROW(checkpoint::require_each_once(mixed, 12, "w"));
}

// Ranges and columns of a matrix of another width than the strides, as ranks of many layouts save them.
TEST(EachOnce, EqualsACountOfElements) {
  std::mt19937 random(5);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  int whole = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t width = 1 + below(6), numel = 1 + below(30);
    std::vector<int> held(size_t(numel), 0);
    std::vector<checkpoint::Elements> parts;
    while (below(8) != 0) {
      checkpoint::Elements e{{below(numel), 0}};
      const auto hole = std::find(held.begin(), held.end(), 0);
      if (hole != held.end() && below(8) != 0) e.range.begin = hole - held.begin();
      e.stride = below(3) == 0 ? 0 : below(4) == 0 ? 1 + below(6) : width;
      e.run = e.stride ? 1 + below(e.stride) : 0;
      e.range.end = e.range.begin + (e.stride ? below(6) * e.stride + e.run : 1 + below(numel));
      if (e.range.end > numel) continue;
      for (const int64_t at : indices_of(e)) ++held[size_t(at)];
      parts.push_back(e);
    }
    const bool once = std::all_of(held.begin(), held.end(), [](int n) { return n == 1; });
    whole += once;
    try {
      checkpoint::require_each_once(parts, numel, "w");
      ASSERT_TRUE(once) << "case " << i;
    } catch (const Error& e) {
      ASSERT_FALSE(once) << "case " << i << ": " << e.what();
      const std::string said = e.what();
      const int64_t named = std::stoll(said.substr(said.find("element ") + 8));
      ASSERT_EQ(held[size_t(named)] == 0, said.ends_with("not at all")) << "case " << i << ": " << said;
      ASSERT_NE(held[size_t(named)], 1) << "case " << i << ": " << said;
    }
  }
  EXPECT_GT(whole, 200);
}

TEST(EachOnce, TakesNoMoreMemoryForMoreRuns) {
  constexpr int64_t rows = int64_t{1} << 40;
  const std::vector<checkpoint::Elements> cut = {columns(rows, 4, 0, 3), columns(rows, 4, 3, 4)};
  EXPECT_NO_THROW(checkpoint::require_each_once(cut, rows * 4, "w"));
  const std::vector<checkpoint::Elements> mixed = {columns(rows, 4, 0, 4), {{0, 4 * rows - 2}, 2, 6}};
  expect_error(Exit::checkpoint, {"w has too many pieces at different distances"},
               [&] { checkpoint::require_each_once(mixed, rows * 4, "w"); });
}

TEST(EachOnce, NamesAMissingOrDuplicateElement) {
  const auto refused = [](std::vector<checkpoint::Elements> parts, std::string_view numbers,
                          std::string_view element) {
    expect_error(Exit::checkpoint, {numbers, "of w are stored", element},
                 [&] { checkpoint::require_each_once(parts, 12, "w"); });
  };
  refused({}, "0 of 12", "element 0 not at all");
  refused({{{0, 11}}}, "11 of 12", "element 11 not at all");
  refused({{{1, 12}}}, "11 of 12", "element 0 not at all");
  refused({{{0, 5}}, {{6, 12}}}, "11 of 12", "element 5 not at all");
  refused({{{0, 7}}, {{6, 12}}}, "13 of 12", "element 6 more than once");
  refused({{{0, 12}}, {{11, 12}}}, "13 of 12", "element 11 more than once");
  refused({columns(4, 3, 0, 2), columns(4, 3, 1, 2)}, "12 of 12", "element 1 more than once");
  refused({columns(4, 3, 0, 1), columns(4, 3, 2, 3), columns(3, 3, 1, 2)}, "11 of 12",
          "element 10 not at all");
}

TEST(EachOnce, RejectsPartsOutsideOfTheTensor) {
  const checkpoint::Elements bad[] = {{{0, 13}},        {{-1, 12}},      {{12, 0}},       {{5, 5}},
                                      {{0, 12}, 1, 0},  {{0, 12}, 0, 3}, {{0, 12}, 4, 3}, {{0, 12}, 2, 3},
                                      {{0, 10}, -1, 3}, {{0, 2}, 3, 5}};
  for (const checkpoint::Elements& e : bad)
    expect_error(Exit::checkpoint, {", exceed w, which has 12"},
                 [&] { checkpoint::require_each_once(std::span(&e, 1), 12, "w"); });
}

}  // namespace
}  // namespace cleave::testing
