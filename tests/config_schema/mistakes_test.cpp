// mistakes.json: files with common mistakes, the expected message, and the corrected file.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "config_schema/json_text.h"
#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

const JsonValue* member(const JsonValue& object, std::string_view name) {
  for (const JsonMember& m : object.members)
    if (m.key == name) return &m.value;
  return nullptr;
}

std::string text_of_file(const JsonValue& v) { return v.kind == JsonValue::Kind::text ? v.text : to_json(v); }

// `bad_ranks` 0: the number of ranks is unknown.
ReadResult read_for(const JsonValue& mistake, const char* which) {
  const JsonValue *ranks = member(mistake, "ranks"), *bad = member(mistake, "bad_ranks");
  const bool assumed = bad && std::string_view(which) == "bad";
  ReadOptions options{.world_size = ranks && !assumed ? *ranks->integer : 1, .world_assumed = assumed};
  return read_ds_config(text_of_file(*member(mistake, which)), "f", options);
}

TEST(Mistakes, AreFixedByFollowingTheMessage) {
  std::ifstream file(MISTAKES);
  const JsonDocument document = read_json_text(std::string(std::istreambuf_iterator<char>(file), {}));
  ASSERT_TRUE(document.complete);
  EXPECT_GE(document.root.items.size(), 99u);
  for (const JsonValue& mistake : document.root.items) {
    const std::string bad = text_of_file(*member(mistake, "bad"));
    const ReadResult wrong = read_for(mistake, "bad"), right = read_for(mistake, "fix");
    const std::string all = format(wrong.problems);
    EXPECT_FALSE(wrong.ok()) << bad;
    EXPECT_NE(all.find(member(mistake, "says")->text), std::string::npos) << bad << "\n" << all;
    EXPECT_TRUE(right.ok()) << bad << "\n" << format(right.problems);
  }
}

}  // namespace
}  // namespace cleave::config
