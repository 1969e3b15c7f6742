#include <gtest/gtest.h>

#include "core/utf8.h"

namespace cleave {
namespace {

constexpr std::string_view kReplaced = "\xEF\xBF\xBD";

std::string repaired(std::string_view bytes) {
  std::string scratch;
  return std::string(valid_utf8(bytes, scratch));
}

// Expected values are those of Python's bytes.decode("utf-8", errors="replace"), as the Unicode standard
// recommends (3.9, "U+FFFD Substitution of Maximal Subparts"). 'X' stands for one U+FFFD.
TEST(Utf8, ReplacesInvalidBytesLikePython) {
  constexpr std::pair<std::string_view, std::string_view> cases[] = {
      {"", ""},
      {"plain text, longer than eight bytes", "plain text, longer than eight bytes"},
      {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"a\xFFz", "aXz"},
      {"a\x80z", "aXz"},
      {"\xC0\xAF", "XX"},            // overlong
      {"\xE0\x80\xAF", "XXX"},       // overlong
      {"\xED\xA0\x80", "XXX"},       // a surrogate
      {"\xF4\x90\x80\x80", "XXXX"},  // above U+10FFFF
      {"\xF0\x9F\x98z", "Xz"},       // three of four bytes: one replacement
      {"\xE2\x82", "X"},             // truncated
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "X\xF0\x9F\x98\x80"},
      {"\xC3\xC3\xA9", "X\xC3\xA9"},
      {"12345678\xE2\x28\xA1rest of it", "12345678X(Xrest of it"}};
  for (const auto& [bytes, wanted] : cases) {
    std::string text;
    for (const char c : wanted) c == 'X' ? text += kReplaced : text += c;
    EXPECT_EQ(repaired(bytes), text) << bytes;
  }
}

TEST(Utf8, WholeCharactersExcludeOnlyAnIncompleteLastOne) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  const size_t ends[] = {0, 1, 3, 6, 10};
  for (size_t n = 0; n <= text.size(); ++n) {
    size_t wanted = 0;
    for (const size_t end : ends) wanted = end <= n ? end : wanted;
    EXPECT_EQ(whole_characters(text.substr(0, n)), wanted) << n;
  }
  EXPECT_EQ(whole_characters("a\x80"), 2U) << "waiting would not make a character of it";
  EXPECT_EQ(whole_characters("a\xFF"), 2U);
  EXPECT_EQ(whole_characters("a\xED\xA0"), 3U);
}

TEST(Utf8, AppendingAndReadingACharacterAreInverse) {
  for (const char32_t code : {0x0U, 0x7FU, 0x80U, 0x7FFU, 0x800U, 0xFFFDU, 0x10000U, 0x10FFFFU}) {
    std::string text;
    append_utf8(text, code);
    const Character c = first_character(text + "x");
    EXPECT_EQ(c.code, code);
    EXPECT_EQ(size_t(c.bytes), text.size());
  }
}

TEST(Utf8, HasTheLengthOfTheFirstCharacter) {
  for (const auto& [text, length] : {std::pair<std::string_view, size_t>{"", 0},
                                     {"ab", 1},
                                     {"\xC3\xA9z", 2},
                                     {"\xE2\x82\xAC", 3},
                                     {"\xF0\x9D\x84\x9E", 4},
                                     {"\xC0\x80", 0},
                                     {"\xED\xA0\x80", 0},
                                     {"\xE2\x82", 0},
                                     {"\x80", 0}})
    EXPECT_EQ(utf8_length(text), length) << text;
}

}  // namespace
}  // namespace cleave
