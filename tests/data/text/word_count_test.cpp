#include "data/text/word_count.h"

#include <gtest/gtest.h>

namespace cleave::text {
namespace {

int64_t words(std::string_view text, size_t part) {
  WordCount count;
  for (size_t at = 0; at < text.size(); at += part) count.add(text.substr(at, part));
  count.end_text();
  EXPECT_EQ(count.bytes(), int64_t(text.size()));
  return count.words();
}

TEST(WordCount, AWordIsAMaximalRunWithoutWhiteSpaceInPartsOfAnySize) {
  for (const size_t part : {1, 2, 3, 100}) {
    EXPECT_EQ(words("", part), 0);
    EXPECT_EQ(words(" \n\t", part), 0);
    EXPECT_EQ(words("one", part), 1);
    EXPECT_EQ(words("  one, two-three  ", part), 2);
    EXPECT_EQ(words("\u4e16\u754c\u3000caf\u00e9\u00a0x\u2028y", part), 4) << "blanks of other scripts";
    EXPECT_EQ(words("a \xFF b\xE2\x82", part), 3) << "invalid bytes are not blanks";
  }
}

TEST(WordCount, TheEndOfATextEndsAWord) {
  WordCount count;
  count.add("one"), count.end_text(), count.add("two");
  EXPECT_EQ(count.words(), 2);
}

}  // namespace
}  // namespace cleave::text
