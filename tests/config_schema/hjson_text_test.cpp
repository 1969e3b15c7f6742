// Texts that are not JSON, but that DeepSpeed reads. The expected values are those of the package
// hjson 3.1.0, which DeepSpeed uses.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "config_schema/json_text.h"
#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

// Returns the text as strict JSON, or its last error.
std::string read_hjson(std::string_view text) {
  const JsonDocument d = read_json_text(text);
  if (d.complete) return to_json(d.root);
  const JsonError& e = d.errors.back();
  return fmt::format("{}:{} {}", e.where.line, e.where.column, e.message);
}

TEST(Hjson, KeysAndTextsNeedNoQuotesAndLinesNoCommas) {
  EXPECT_EQ(read_hjson("{\n a: 1\n b: text to the, end } of it # with this\n c: true // c\n d: 2, e: x\n}"),
            R"({"a": 1, "b": "text to the, end } of it # with this", "c": true, "d": 2, "e": "x"})");
  EXPECT_EQ(read_hjson("{a: 012\n b: 5e8\n c: -\n d: 1 2\n e: tru\n f: 3 # c\n}"),
            R"({"a": "012", "b": 5e8, "c": "-", "d": "1 2", "e": "tru", "f": 3})");
  EXPECT_EQ(read_hjson("{\"a\": \"x\" \"b\": {c: 1} d: []\n}"), R"({"a": "x", "b": {"c": 1}, "d": []})");
  EXPECT_EQ(read_hjson("{\"a\": 1 \"b\": 2\n}"), R"({"a": "1 \"b\": 2"})");
}

TEST(Hjson, TextsMayStandInSingleQuotesAndOnSeveralLines) {
  EXPECT_EQ(read_hjson("{a: 'x \"y\" \\' z', 'c': [1\n 2\n three\n]}"),
            R"({"a": "x \"y\" ' z", "c": [1, 2, "three"]})");
  EXPECT_EQ(read_hjson("{\n  a:\n    '''\n    one\n      two\n    '''\n  b: '''x'''\n}"),
            R"({"a": "one\u000a  two", "b": "x"})");
  EXPECT_EQ(read_hjson("{a: '' b: ''''''\n}"), R"({"a": "", "b": ""})");
}

TEST(Hjson, TextsThatItsReaderRejectsAreErrors) {
  const std::string also = "read as Hjson, as DeepSpeed does: ";
  EXPECT_EQ(read_hjson("{a b: 1}"), "1:4 " + also + "expected ':' after key \"a\", got \"b\"");
  EXPECT_EQ(read_hjson("{a: }"), "1:5 " + also + "expected a value, got \"}\"");
  EXPECT_EQ(read_hjson("{a: ,b: 1}"), "1:5 " + also + "expected a value, got \",\"");
  EXPECT_EQ(read_hjson("{a: 'x\n'}"), "1:5 " + also + "the string that starts here has no closing quote");
  EXPECT_EQ(read_hjson("{a: '''x}"), "1:5 " + also + "the string that starts here has no closing '''");
  EXPECT_EQ(read_hjson("{:1}"), "1:2 expected a key in double quotes, got \":\"");
}

TEST(Hjson, PositionsStayRight) {
  const JsonDocument d = read_json_text("{\n  fp16: {\n    enabled: '''on'''  loss_scale: 0\n  }\n}");
  ASSERT_TRUE(d.complete);
  const JsonValue& fp16 = d.root.members[0].value;
  EXPECT_EQ(d.root.members[0].where, (TextPosition{2, 3}));
  EXPECT_EQ(fp16.members[0].value.where, (TextPosition{3, 14}));
  EXPECT_EQ(fp16.members[1].where, (TextPosition{3, 24}));
  EXPECT_EQ(fp16.members[1].value.where, (TextPosition{3, 36}));
}

TEST(Hjson, StrictJsonWithASyntaxErrorKeepsItsOwnMessage) {
  EXPECT_EQ(read_hjson("{\"a\": 1 \"b\": 2}"), "1:9 missing comma before this key");
  EXPECT_EQ(read_hjson("{\"a\": {\"b\": tru, \"c\": 1},\n \"d\": 1}").substr(0, 12), "1:13 \"tru\" i");
  EXPECT_EQ(read_hjson("{\"type\": \"AdamW,\n \"lr\": 1}"),
            "1:10 the string that starts here has no closing quote");
}

TEST(Hjson, AFileOfItIsAcceptedWithOneWarningThatNamesTheFirstPlace) {
  const char* text =
      "{\n  \"train_batch_size\": 8\n  fp16: {enabled: true}\n  zero_optimization: {stage: 2}\n}";
  const ReadResult r = read_ds_config(text, "f", {});
  EXPECT_EQ(
      format(r.problems),
      "warning: f:3:3: this is not JSON (expected ',' or '}' in the object, got \"f\"); the file is read "
      "as Hjson, as DeepSpeed reads it\n");
  EXPECT_EQ(r.config.zero.stage, 2);
  EXPECT_EQ(r.config.precision, Precision::fp16);
  EXPECT_EQ(r.text,
            R"({"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {"stage": 2}})");
  EXPECT_FALSE(read_ds_config(text, "f", {.strict = true}).ok());
  // Comments and trailing commas are accepted also in JSON.
  EXPECT_TRUE(read_ds_config("{\"train_batch_size\": 8, # x\n}", "f", {.strict = true}).problems.empty());
}

TEST(Hjson, ATypoThatBecomesATextIsAnErrorOfTheKey) {
  const ReadResult r = read_ds_config("{\"train_batch_size\": 8,\n \"gradient_clipping\": 1,0,\n}", "f", {});
  EXPECT_FALSE(r.ok());
  const ReadResult word =
      read_ds_config("{\"train_batch_size\": 8,\n \"prescale_gradients\": tru,\n \"stage\": 1\n}", "f", {});
  EXPECT_NE(format(word.problems).find("f:2:24: prescale_gradients: expected true or false, got \"tru,\""),
            std::string::npos)
      << format(word.problems);
}

}  // namespace
}  // namespace cleave::config
