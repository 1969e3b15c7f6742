#include "config_schema/keys.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "config_schema/json_text.h"
#include "config_schema/key_values.h"

namespace cleave::config {
namespace {

std::vector<Key> keys_of_default() {
  static DsConfig config;
  return describe(config);
}

// The list of paths was made independently of the descriptions, so it finds forgotten keys.
TEST(Keys, EveryKeyOfDeepSpeedHasAStatusAndAMeaning) {
  std::ifstream file(FIXTURES "/ds_config_paths.txt");
  ASSERT_TRUE(file);
  std::set<std::string> known;
  for (const Key& key : keys_of_default()) {
    EXPECT_FALSE(key.status == Status::detail && key.with.empty()) << key.path;
    known.insert(key.path);
  }
  int64_t paths = 0;
  for (std::string path; std::getline(file, path); ++paths)
    EXPECT_TRUE(known.contains(path)) << path << " has no status";
  EXPECT_EQ(paths, 596);
}

TEST(Keys, NoKeyIsDescribedTwice) {
  std::set<std::string> seen;
  for (const Key& key : keys_of_default()) EXPECT_TRUE(seen.insert(key.path).second) << key.path;
}

TEST(Keys, EveryDefaultIsJsonThatTheKeyItselfAccepts) {
  for (const Key& key : keys_of_default()) {
    const JsonDocument d = read_json_text(key.default_text);
    EXPECT_TRUE(d.complete) << key.path << ": " << key.default_text;
    const bool bound = key.target.index() != 0;
    EXPECT_TRUE(bound || store_value(key, d.root)) << key.path << ": " << key.default_text;
  }
}

TEST(Keys, KeysWithoutEffectHaveAReason) {
  for (const Key& key : keys_of_default())
    EXPECT_TRUE(key.status == Status::section || !key.meaning.empty()) << key.path;
}

// A value of the wrong type must be an error for every range.
TEST(Keys, NoKeyAcceptsAValueOfAWrongType) {
  const char* values[] = {"true", "1", "0.5", "\"an unexpected text\"", "[]", "{}"};
  const std::set<std::string> fitting[] = {{"true"}, {"1"}, {"1", "0.5"}, {"\"an unexpected text\""}, {"[]"},
                                           {"{}"},   {}};
  for (const Key& key : keys_of_default()) {
    if (key.type == Type::any) continue;
    for (const char* text : values) {
      const JsonDocument d = read_json_text(text);
      if (fitting[size_t(key.type)].contains(text)) continue;
      if (key.or_one_text && d.root.kind == JsonValue::Kind::text) continue;
      EXPECT_FALSE(store_value(key, d.root)) << key.path << " accepted " << text;
    }
  }
}

TEST(Keys, ATextIsNeverANumberAndABooleanIsNeverAnInteger) {
  int64_t x = 5;
  Key key;
  key.type = Type::integer, key.target = &x;
  EXPECT_FALSE(store_value(key, read_json_text("\"8\"").root));
  EXPECT_FALSE(store_value(key, read_json_text("true").root));
  EXPECT_FALSE(store_value(key, read_json_text("5.5").root));
  EXPECT_FALSE(store_value(key, read_json_text("null").root));
  EXPECT_EQ(x, 5);
  EXPECT_TRUE(store_value(key, read_json_text("5e8").root));
  EXPECT_EQ(x, 500000000);
}

TEST(Keys, RangesDescribeTheExpectedValue) {
  double x = 0;
  Key key;
  key.type = Type::number, key.target = &x;
  EXPECT_EQ(wanted_by(key.in(0, 3)), "a number from 0 to 3");
  EXPECT_FALSE(store_value(key, read_json_text("3.1").root));
  key = Key{};
  key.type = Type::number, key.target = &x;
  EXPECT_EQ(wanted_by(key.above(0).or_null()), "a number above 0, or null");
  EXPECT_FALSE(store_value(key, read_json_text("0").root));
  EXPECT_FALSE(store_value(key, read_json_text("Infinity").root));
  EXPECT_FALSE(store_value(key, read_json_text("NaN").root));
  EXPECT_TRUE(store_value(key, read_json_text("0.1").root));
}

TEST(Keys, AnIntegerThatExceedsItsFieldIsAnError) {
  int x = 7;
  Key key;
  key.type = Type::integer, key.target = &x;
  EXPECT_FALSE(store_value(key, read_json_text("3000000000").root));
  EXPECT_EQ(x, 7);
}

}  // namespace
}  // namespace cleave::config
