#include "config_schema/decay_rule.h"

#include <gtest/gtest.h>

namespace cleave::config {
namespace {

const ParamSpec kMatrix{"h.0.mlp.weight", {3, 4}, {}, true}, kBias{"h.0.mlp.bias", {3}, {}, false},
    kNorm{"ln_f.weight", {4}, {}, false};

std::string decayed(std::vector<std::string> words) {
  const DecayRule rule(std::move(words));
  std::string text;
  for (const ParamSpec* p : {&kMatrix, &kBias, &kNorm}) text += rule.applies_to(*p) ? '1' : '0';
  return text;
}

TEST(DecayRule, AppliesToMatricesAllOrNamedParameters) {
  EXPECT_EQ(decayed({"matrices"}), "100");
  EXPECT_TRUE(DecayRule().applies_to(kMatrix) && !DecayRule().applies_to(kBias)) << "the default";
  EXPECT_EQ(decayed({"all"}), "111");
  EXPECT_EQ(decayed({"*.weight"}), "101");
  EXPECT_EQ(decayed({"ln_f.weight"}), "001");
  EXPECT_EQ(decayed({"matrices", "*.bias"}), "110");
  EXPECT_EQ(decayed({}), "000");
}

TEST(DecayRule, NamesPatternsThatApplyToNothing) {
  const std::vector<UnitSpec> units{{"a", {kMatrix, kBias}}, {"b", {kNorm}}};
  EXPECT_EQ(DecayRule({"all", "matrices", "*.weight", "metrices", "h.1.*"}).idle_patterns(units),
            (std::vector<std::string>{"metrices", "h.1.*"}));
}

}  // namespace
}  // namespace cleave::config
