#include "checkpoint/elements.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// Ranges and runs at distances, of a tensor with 14 elements.
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

TEST(EachOverlap, FindsWhatComparingElementByElementFinds) {
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

TEST(EachOnce, NamesAnElementThatIsMissingOrThereTwice) {
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

TEST(EachOnce, RefusesPartsThatNoTensorOfThatSizeHas) {
  const checkpoint::Elements bad[] = {{{0, 13}},        {{-1, 12}},      {{12, 0}},       {{5, 5}},
                                      {{0, 12}, 1, 0},  {{0, 12}, 0, 3}, {{0, 12}, 4, 3}, {{0, 12}, 2, 3},
                                      {{0, 10}, -1, 3}, {{0, 2}, 3, 5}};
  for (const checkpoint::Elements& e : bad)
    expect_error(Exit::checkpoint, {"are no part of w, which has 12"},
                 [&] { checkpoint::require_each_once(std::span(&e, 1), 12, "w"); });
}

}  // namespace
}  // namespace cleave::testing
