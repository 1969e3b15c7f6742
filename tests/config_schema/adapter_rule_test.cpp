#include "config_schema/adapter_rule.h"

#include <gtest/gtest.h>

namespace cleave::config {
namespace {

AdapterRule rule_of(std::vector<std::string> targets) {
  return {std::move(targets), {.rank = 2}, "transformer."};
}

TEST(AdapterRule, TakesALayersNameOrItsLastPartsWithAndWithoutThePrefixOfFiles) {
  const std::string c_proj = "h.0.mlp.c_proj";
  for (const char* target :
       {"c_proj", "mlp.c_proj", "0.mlp.c_proj", "h.0.mlp.c_proj", "transformer.h.0.mlp.c_proj", "all-linear"})
    EXPECT_TRUE(rule_of({"x", target}).applies_to(c_proj)) << target;
  for (const char* target :
       {"proj", "attn.c_proj", "mlp", "h.1.mlp.c_proj", "x.h.0.mlp.c_proj", "*.c_proj", ""})
    EXPECT_FALSE(rule_of({target}).applies_to(c_proj)) << target;
  EXPECT_FALSE(AdapterRule().applies_to(c_proj));
  EXPECT_TRUE(AdapterRule().empty());
}

TEST(AdapterRule, NamesTheTargetsThatNoLayerHas) {
  const std::vector<std::string> linears{"h.0.attn.c_attn", "h.0.mlp.c_proj"};
  EXPECT_EQ(rule_of({"c_attn", "q_proj", "mlp.c_proj", "attn"}).idle_targets(linears),
            (std::vector<std::string>{"q_proj", "attn"}));
  EXPECT_EQ(rule_of({"all-linear"}).idle_targets(linears), std::vector<std::string>());
  EXPECT_EQ(rule_of({"all-linear"}).idle_targets({}), (std::vector<std::string>{"all-linear"}));
}

}  // namespace
}  // namespace cleave::config
