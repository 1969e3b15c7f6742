#include "core/printable.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(Printable, EscapesTerminalControlSequences) {
  EXPECT_EQ(in_quotes("plain \xc3\xa9"), "'plain \xc3\xa9'");  // valid UTF-8 is kept
  EXPECT_EQ(in_quotes(std::string_view("a\0\n\x1b[2J", 7)), "'a\\x00\\x0a\\x1b[2J'");
  EXPECT_EQ(in_quotes("\x80\xff\xc3"), "'\\x80\\xff\\xc3'");  // invalid UTF-8
  EXPECT_EQ(in_quotes("\xc2\x9b"), "'\\xc2\\x9b'");           // a two-byte control character
  EXPECT_EQ(in_quotes("it's \\"), "'it\\x27s \\x5c'");
  EXPECT_EQ(printable("error:\n\tone\x1b[31m \\"), "error:\n\tone\\x1b[31m \\");
}

TEST(Printable, TruncatesLongTexts) {
  EXPECT_EQ(in_quotes("abcdef", 3), "'abc...'");
  EXPECT_EQ(in_quotes("abc", 3), "'abc'");
  EXPECT_LT(in_quotes(std::string(1 << 20, '\xff')).size(), 300u);
}

}  // namespace
}  // namespace cleave
