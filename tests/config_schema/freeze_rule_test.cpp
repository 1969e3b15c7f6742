#include "config_schema/freeze_rule.h"

#include <gtest/gtest.h>

namespace cleave::config {
namespace {

const std::vector<UnitSpec> kUnits{
    {"wte", {{"wte.weight", {4, 2}, {}}}},
    {"h.0", {{"h.0.attn.c_attn.weight", {2, 2}, {}}, {"h.0.mlp.c_fc.bias", {2}, {}}}}};

TEST(FreezeRule, FitsNamesWithAndWithoutThePrefixOfFiles) {
  const FreezeRule rule({"transformer.wte*", "*.mlp.*"}, "transformer.");
  EXPECT_TRUE(rule.applies_to("wte.weight"));
  EXPECT_TRUE(rule.applies_to("h.11.mlp.c_fc.bias"));
  EXPECT_FALSE(rule.applies_to("h.11.attn.c_attn.bias"));
  EXPECT_FALSE(FreezeRule({"transformer.wte*"}).applies_to("wte.weight"));
  EXPECT_FALSE(FreezeRule().applies_to("wte.weight"));
  EXPECT_TRUE(FreezeRule({"h.[01].*"}).applies_to("h.1.ln_1.weight"));
}

TEST(FreezeRule, NamesPatternsThatFitNothingAndWhatIsNearest) {
  EXPECT_EQ(FreezeRule({"wte.*", "lm_head.*", "*.bias"}).idle_patterns(kUnits),
            (std::vector<std::string>{"lm_head.*"}));
  EXPECT_EQ(nearest_name("wpe.weight", kUnits), "wte.weight");
  EXPECT_EQ(nearest_name("h.0.mlp.fc.bias", kUnits), "h.0.mlp.c_fc.bias");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

}  // namespace
}  // namespace cleave::config
