#include "core/nesting.h"

#include <gtest/gtest.h>

#include <string>

namespace cleave {
namespace {

std::string nested(int depth) { return std::string(size_t(depth), '[') + std::string(size_t(depth), ']'); }

TEST(Nesting, CountsContainersThatAreOpenAtATime) {
  EXPECT_FALSE(nests_too_deep(""));
  EXPECT_FALSE(nests_too_deep(nested(64)));
  EXPECT_TRUE(nests_too_deep(nested(65)));
  EXPECT_TRUE(nests_too_deep("{\"a\": " + nested(64) + "}"));
  std::string beside = "[";
  for (int i = 0; i < 1000; ++i) beside += nested(63) + ",";
  EXPECT_FALSE(nests_too_deep(beside + "0]"));
}

TEST(Nesting, LeavesBracketsInStringsAlone) {
  const std::string brackets(100, '[');
  EXPECT_FALSE(nests_too_deep("[\"" + brackets + "\"]"));
  EXPECT_FALSE(nests_too_deep(R"(["a\")" + brackets + "\"]"));
  EXPECT_TRUE(nests_too_deep(R"(["a\\")" + brackets));
}

}  // namespace
}  // namespace cleave
