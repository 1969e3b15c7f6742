#include "config_schema/json_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cleave::config {
namespace {

// Returns "line:column message" of the only error.
std::string error_of(std::string_view text) {
  const JsonDocument d = read_json_text(text);
  if (d.errors.size() != 1) return std::to_string(d.errors.size()) + " errors";
  return std::to_string(d.errors[0].where.line) + ":" + std::to_string(d.errors[0].where.column) + " " +
         d.errors[0].message;
}

JsonValue only_value(const JsonDocument& d) { return d.root.members.at(0).value; }

TEST(JsonText, KeepsThePositionOfEveryKeyAndValue) {
  const JsonDocument d = read_json_text("{\n  \"a\": 1,\n\t\"b\": [true, \"x\"]\n}");
  ASSERT_TRUE(d.complete);
  ASSERT_EQ(d.root.members.size(), 2u);
  EXPECT_EQ(d.root.members[0].where, (TextPosition{2, 3}));
  EXPECT_EQ(d.root.members[0].value.where, (TextPosition{2, 8}));
  EXPECT_EQ(d.root.members[1].where, (TextPosition{3, 2}));
  EXPECT_EQ(d.root.members[1].value.items[1].where, (TextPosition{3, 14}));
}

TEST(JsonText, ColumnsCountCharactersNotBytes) {
  const JsonDocument d = read_json_text("{\"\xC3\xA9\xE2\x82\xAC\": 1}");
  ASSERT_TRUE(d.complete);
  EXPECT_EQ(only_value(d).where, (TextPosition{1, 8}));
}

TEST(JsonText, ToleratesCommentsTrailingCommasAndByteOrderMark) {
  const JsonDocument d = read_json_text(
      "\xEF\xBB\xBF# one\n{ // two\n \"a\": /* three\n */ [1, 2,],\r\n # four\n \"b\": {},\n} // five");
  ASSERT_TRUE(d.complete) << d.errors[0].message;
  EXPECT_EQ(d.root.members.size(), 2u);
  EXPECT_EQ(d.root.members[0].value.items.size(), 2u);
  EXPECT_EQ(read_json_text("\xEF\xBB\xBF{}").root.where, (TextPosition{1, 1}));
}

TEST(JsonText, WholeNumbersAreIntegersHoweverTheyAreWritten) {
  const auto integer = [](const char* text) {
    return only_value(read_json_text(std::string("{\"a\":") + text + "}")).integer;
  };
  EXPECT_EQ(integer("5e8"), 500000000);
  EXPECT_EQ(integer("2.0"), 2);
  EXPECT_EQ(integer("-7"), -7);
  EXPECT_EQ(integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer("9223372036854775808"), std::nullopt);
  EXPECT_EQ(integer("1e400"), std::nullopt);
  EXPECT_EQ(integer("0.5"), std::nullopt);
  EXPECT_EQ(integer("1e-400"), std::nullopt);
}

TEST(JsonText, HugeAndTinyNumbersBecomeInfinityAndZero) {
  EXPECT_TRUE(std::isinf(only_value(read_json_text("{\"a\": -1e999}")).number));
  EXPECT_EQ(only_value(read_json_text("{\"a\": 1e-999}")).number, 0);
  EXPECT_TRUE(std::isinf(only_value(read_json_text("{\"a\": Infinity}")).number));
  EXPECT_TRUE(std::isnan(only_value(read_json_text("{\"a\": NaN}")).number));
}

TEST(JsonText, DecodesEscapes) {
  const JsonDocument d = read_json_text(R"({"a": "\"\\\/\n\u00e9\ud83d\ude00"})");
  ASSERT_TRUE(d.complete) << d.errors[0].message;
  EXPECT_EQ(only_value(d).text, "\"\\/\n\xC3\xA9\xF0\x9F\x98\x80");
}

TEST(JsonText, ADuplicateKeyIsAnErrorAtTheSecondOne) {
  EXPECT_EQ(error_of("{\"a\": 1,\n \"a\": 2}"), "2:2 duplicate key \"a\" in one object; remove one");
  EXPECT_TRUE(read_json_text("{\"a\": {\"b\": 1}, \"b\": 2}").errors.empty());
}

TEST(JsonText, SyntaxErrorsHaveThePlaceAndTheExpectedToken) {
  EXPECT_EQ(error_of("{\"a\": 1 \"b\": 2}"), "1:9 missing comma before this key");
  EXPECT_EQ(error_of("{:1}"), "1:2 expected a key in double quotes, got \":\"");
  EXPECT_EQ(error_of("{\"a\" 1}"), "1:6 expected ':' after key \"a\", got \"1\"");
  EXPECT_EQ(
      error_of("{\"a\": True}"),
      "1:7 \"True\" is not a JSON value; strings need double quotes, and words are true, false and null");
  EXPECT_EQ(error_of("{\"a\": $x}"), "1:7 expected a value, got \"$\"");
  EXPECT_EQ(error_of("{\"a\": \"x\n\"}"), "1:7 the string that starts here has no closing quote");
  EXPECT_EQ(error_of("{\"a\": \"x"), "1:7 the string that starts here has no closing quote");
  EXPECT_EQ(error_of("{\"a\": [1, 2"), "1:7 the list that starts here is not closed");
  EXPECT_EQ(error_of("{\"a\": {"), "1:7 the object that starts here is not closed");
  EXPECT_EQ(error_of("{} {}"), "1:4 unexpected \"{\" after the end of the object");
  EXPECT_EQ(error_of("{} /* x"), "1:4 the comment that begins here has no */");
  EXPECT_EQ(error_of("{\"a\": 012}").substr(0, 14), "1:7 \"012\" is n");
  EXPECT_EQ(error_of("{\"a\": \"\\ud800\"}").substr(0, 22), "1:14 \\u surrogates mus");
  EXPECT_EQ(error_of("{\"a\": \"\\x\"}"), "1:9 \\x is not a JSON escape");
}

TEST(JsonText, EmptyBinaryDeepAndHugeTextsAreClearErrors) {
  EXPECT_EQ(error_of(""), "1:1 the file is empty; expected a JSON object: { ... }");
  EXPECT_EQ(error_of(" \n // nothing\n"), "3:1 the file is empty; expected a JSON object: { ... }");
  EXPECT_EQ(error_of("{\n\"a\": \"\xFF\"}"), "2:7 byte 0xff is not UTF-8; save the file as UTF-8");
  EXPECT_EQ(error_of("{\"a\": \"\xC0\xAF\"}"), "1:8 byte 0xc0 is not UTF-8; save the file as UTF-8");
  EXPECT_EQ(error_of(std::string(100'000, '[')), "1:66 nested deeper than 64 levels");
  EXPECT_EQ(error_of(std::string(3 << 20, ' ')),
            "1:1 the text is too large (got 3145728 bytes, expected at most 1048576)");
  EXPECT_EQ(error_of(std::string("{\"a\": \"\0\"}", 10)).substr(0, 22), "1:8 control character ");
}

TEST(JsonText, EveryPrefixOfAFileIsAnErrorAndNotACrash) {
  const std::string text = "{\"a\": [1, {\"b\": \"\\u00e9\\n\"}], # c\n \"d\": -1.5e3, /* e */ \"f\": null}";
  ASSERT_TRUE(read_json_text(text).complete);
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(read_json_text(text.substr(0, n)).complete) << n;
}

TEST(JsonText, QuotedTextIsSafeToPrint) {
  EXPECT_EQ(quote("a\x1b[31m"), "\"a\\x1b[31m\"");
  EXPECT_EQ(quote("\xFF"), "\"\\xff\"");
  EXPECT_LT(quote(std::string(1000, 'x')).size(), 70u);
}

}  // namespace
}  // namespace cleave::config
