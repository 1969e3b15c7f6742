#include "config_schema/nearest_key.h"

#include <gtest/gtest.h>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

std::vector<std::string> all_paths() {
  std::vector<std::string> paths;
  for (const KeyRow& row : list_keys()) paths.push_back(row.path);
  return paths;
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("stage", "stage", 3), 0);
  EXPECT_EQ(edit_distance("stage", "stges", 3), 2);
  EXPECT_EQ(edit_distance("stage", "satge", 3), 1);
  EXPECT_EQ(edit_distance("stage", "stag", 3), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting", 3), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting", 2), 3);
  EXPECT_EQ(edit_distance("", "abc", 5), 3);
  EXPECT_EQ(edit_distance("", "abc", 1), 2);
}

TEST(NearestKey, ANameAtTheWrongLevelGetsItsSection) {
  const Suggestion s = nearest_key("", "stage", all_paths());
  EXPECT_EQ(s.path, "zero_optimization.stage");
  EXPECT_TRUE(s.other_level);
  EXPECT_EQ(nearest_key("zero_optimization", "gradient_clipping", all_paths()).path, "gradient_clipping");
}

TEST(NearestKey, NothingIsSuggestedForAWordUnlikeAnything) {
  EXPECT_EQ(nearest_key("", "cuda_visible_devices", all_paths()).path, "");
  EXPECT_EQ(nearest_key("", "x", all_paths()).path, "");
}

// Every seventh key, with every second letter in turn left out, doubled, swapped with the next or
// replaced.
TEST(NearestKey, OneTypoInAnyKeyIsUnderstood) {
  const std::vector<std::string> paths = all_paths();
  int64_t tried = 0, right = 0;
  for (size_t k = 0; k < paths.size(); k += 7) {
    const std::string& path = paths[k];
    const size_t dot = path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot);
    const std::string name = dot == std::string::npos ? path : path.substr(dot + 1);
    if (name.find('<') != std::string::npos) continue;
    for (size_t i = 0; i < name.size(); i += 2) {
      std::string left_out = name, doubled = name, replaced = name;
      left_out.erase(i, 1), doubled.insert(i, 1, name[i]), replaced[i] = replaced[i] == 'q' ? 'z' : 'q';
      for (const std::string& slip : {left_out, doubled, replaced}) {
        const std::string full = parent.empty() ? slip : parent + "." + slip;
        if (std::find(paths.begin(), paths.end(), full) != paths.end()) continue;
        ++tried;
        right += nearest_key(parent, slip, paths).path == path;
      }
    }
  }
  RecordProperty("right_percent", std::to_string(100.0 * double(right) / double(tried)));
  EXPECT_GE(double(right), 0.97 * double(tried)) << right << " of " << tried;
}

TEST(NearestKey, ALongNameMayHaveUpToThreeTypos) {
  const std::vector<std::string> paths = all_paths();
  EXPECT_EQ(nearest_key("", "gradiant_acumulation_step", paths).path, "gradient_accumulation_steps");
  EXPECT_EQ(nearest_key("", "gradiant_acumullation_step", paths).path, "");
  EXPECT_EQ(nearest_key("zero_optimization", "staeg", paths).path, "zero_optimization.stage");
}

TEST(NearestWord, IsCaseBlindAndSilentWhenFar) {
  EXPECT_EQ(nearest_word("ADAMW", {"Adam", "AdamW", "SGD"}), "AdamW");
  EXPECT_EQ(nearest_word("Admaw", {"Adam", "AdamW", "SGD"}), "AdamW");
  EXPECT_EQ(nearest_word("Shampoo", {"Adam", "AdamW", "SGD"}), "");
}

}  // namespace
}  // namespace cleave::config
