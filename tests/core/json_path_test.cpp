#include "core/json_path.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace cleave {
namespace {

TEST(PathInJson, KeepsUtf8AndEscapesOtherBytes) {
  EXPECT_EQ(path_in_json("/a b/Größe/模型.txt"), "/a b/Größe/模型.txt");
  EXPECT_EQ(path_in_json("a\xff\xfe.txt"), "a\\xff\\xfe.txt");
  EXPECT_EQ(path_in_json("a\\b"), "a\\b");
  EXPECT_EQ(path_in_json("a\\xff"), "a\\x5cxff");
  EXPECT_EQ(path_from_json("a\\x5cxff"), "a\\xff");
  EXPECT_EQ(path_from_json("a\\xf"), "a\\xf");
  // Overlong form, surrogate, above the last code point, truncated.
  for (const char* bad : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\xa8"})
    EXPECT_EQ(path_in_json(bad).size(), 4 * std::string(bad).size());
}

// The JSON library defines valid UTF-8: it throws for an invalid string.
TEST(PathInJson, RoundTripsEveryPath) {
  std::mt19937 random(5);
  const std::string parts[] = {"\\",           "x",    "f", "5c",      "/", "\xff", "\xc3", "\xa9",
                               "\xe6\xa8\xa1", "\xed", "a", "\xf0\x9f"};
  for (int i = 0; i < 20000; ++i) {
    std::string path;
    for (auto n = random() % 9; n > 0; --n)
      path +=
          random() % 2 == 0 ? parts[random() % std::size(parts)] : std::string(1, char(1 + random() % 255));
    const std::string text = nlohmann::json(path_in_json(path)).dump();
    EXPECT_EQ(path_from_json(nlohmann::json::parse(text).get<std::string>()), path) << text;
  }
}

}  // namespace
}  // namespace cleave
