// Added tokens and normal forms alone, compared with results of the tokenizers library.
#include <gtest/gtest.h>

#include "data/text/added_tokens.h"
#include "data/text/normal_form.h"

namespace cleave::text {
namespace {

std::string cut(const std::vector<AddedToken>& tokens, std::string_view text) {
  std::string out;
  AddedTokens(tokens).cut(
      text, true, [&](std::string_view piece) { out.append("(").append(piece).append(")"); },
      [&](int32_t id) { out += std::to_string(id); });
  return out;
}

TEST(AddedTokens, TheLeftmostAndLongestIsTaken) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "ab"}, {.id = 2, .content = "abcd"}};
  EXPECT_EQ(cut(tokens, "abcabcdxabababcd"), "1(c)2(x)112");
  EXPECT_EQ(cut(tokens, "aabc"), "(a)1(c)");
}

TEST(NormalForm, CharactersNewerThanUnicode9DoNotMove) {
  std::string scratch;
  const auto nfc = [&](std::string_view text) {
    return std::string(to_normal_form(NormalForm::nfc, text, scratch));
  };
  EXPECT_EQ(nfc("e\u0301\u0327"), "\u0229\u0301") << "marks below come first";
  EXPECT_EQ(nfc("x\u09FE\u05AE"), "x\u09FE\u05AE") << "U+09FE is of Unicode 11";
}

}  // namespace
}  // namespace cleave::text
