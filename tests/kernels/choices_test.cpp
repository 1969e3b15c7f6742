#include "kernels/choices.h"

#include <gtest/gtest.h>

namespace cleave::kernels {
namespace {

TEST(Choices, KeepTheFirstChoiceAndReportItOnce) {
  Choices choices;
  EXPECT_EQ(choices.find("a product"), std::nullopt);
  EXPECT_EQ(choices.keep("a product", "third"), "third");
  EXPECT_EQ(choices.keep("a product", "fourth"), "third");
  EXPECT_EQ(choices.find("a product"), "third");
  EXPECT_EQ(choices.take_new(), (Choices::Map{{"a product", "third"}}));
  EXPECT_TRUE(choices.take_new().empty());
}

TEST(Choices, ReplayedChoicesOverrideMeasuredOnes) {
  Choices choices;
  choices.replay({{"a product", "second"}});
  EXPECT_EQ(choices.keep("a product", "third"), "second");
  EXPECT_TRUE(choices.take_new().empty());
}

}  // namespace
}  // namespace cleave::kernels
