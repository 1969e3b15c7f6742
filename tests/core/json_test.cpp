#include "core/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace cleave {
namespace {

std::string nested(int depth) { return std::string(size_t(depth), '[') + std::string(size_t(depth), ']'); }

// "LINE:COLUMN message", or nothing.
std::string fault_of(const std::string& text) {
  const auto fault = fault_in_json(text);
  return fault ? fmt::format("{}:{} {}", fault->line, fault->column, fault->message) : "";
}

TEST(Json, ReportsPositionAndReasonOfInvalidText) {
  EXPECT_EQ(fault_of(R"({"a": [1, 2.5, null, "\"x"], "b": {"a": true}})"), "");
  EXPECT_EQ(fault_of(" \n"), "1:1 it is empty");
  EXPECT_EQ(fault_of("{\n  \"a\": 1,\n}"), "3:1 it is not JSON: unexpected '}'; expected string literal");
  EXPECT_EQ(fault_of("{\"a\": nope}"), "1:7 it is not JSON: invalid literal: 'nope'");
  EXPECT_EQ(fault_of("[1, 2"), "1:6 it is not JSON: unexpected end of input; expected ']'");
  EXPECT_EQ(fault_of("[\"\u00e9\u4e16\" 1]"), "1:7 it is not JSON: unexpected number literal; expected ']'");
  EXPECT_EQ(fault_of("[1e999]"), "1:2 it is not JSON: number overflow parsing '1e999'");
  EXPECT_EQ(
      fault_of("[\"a\nb\"]"),
      "1:4 it is not JSON: invalid string: control character U+000A (LF) must be escaped to \\u000A or \\n");
  EXPECT_EQ(fault_of("[\"ab\xff\"]"), "1:5 it is not JSON: invalid string: ill-formed UTF-8 byte");
  EXPECT_EQ(fault_of("[-x]"), "1:2 it is not JSON: invalid number; expected digit after '-': '-x'");
  EXPECT_EQ(fault_of("[1] [2]"), "1:5 it is not JSON: unexpected '['; expected end of input");
}

TEST(Json, ReportsADuplicateKeyWithItsPosition) {
  EXPECT_EQ(fault_of("{\"a\": {\"b\": 1},\n \"b\": 2, \"a\": 3}"),
            "2:10 duplicate key 'a' in one object");
  EXPECT_EQ(fault_of(R"({"a\"\\": 1, "a\"\\": 2})"),
            R"(1:14 duplicate key 'a"\x5c' in one object)");
  EXPECT_EQ(fault_of(R"([{"a": 1}, {"a": 2}])"), "");
}

TEST(Json, LimitsTheNestingDepth) {
  EXPECT_EQ(fault_of(nested(64)), "");
  EXPECT_EQ(fault_of(nested(65)), "1:65 it nests deeper than 64 levels");
  EXPECT_EQ(fault_of("{\"a\": " + nested(64) + "}"), "1:70 it nests deeper than 64 levels");
  EXPECT_EQ(fault_of(std::string(1'000'000, '[')), "1:65 it nests deeper than 64 levels");
  std::string beside = "[";
  for (int i = 0; i < 1000; ++i) beside += nested(63) + ",";
  EXPECT_EQ(fault_of(beside + "0]"), "");
  EXPECT_EQ(fault_of("[\"" + std::string(100, '[') + "\"]"), "");
}

TEST(Json, ErrorsNameFilePositionAndAction) {
  try {
    parse_json("{\"a\":\n 1 2}", "a.json", Exit::data, "write it again");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::data);
    EXPECT_STREQ(e.what(),
                 "a.json:2:4: it is not JSON: unexpected number literal; expected '}'; write it again");
  }
  EXPECT_EQ(parse_json("{\"a\": [1]}", "a.json", Exit::data)["a"][0], 1);
  EXPECT_TRUE(json_or_nothing("{").is_discarded());
  EXPECT_TRUE(json_or_nothing("").is_discarded());
  EXPECT_EQ(json_or_nothing("[7]")[0], 7);
}

}  // namespace
}  // namespace cleave
