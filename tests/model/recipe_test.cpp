#include "model/recipe.h"

#include <gtest/gtest.h>

#include <functional>

#include "model/presets.h"

namespace cleave::model {
namespace {

using Lines = std::vector<std::string>;

TEST(Recipes, ArePrintedWithWhatMakesABlockDifferent) {
  EXPECT_EQ(
      lines_of(recipe_of(find_model("gpt2"))),
      (Lines{"every layer: 12 heads of 64, biases; MLP 3072 gelu_pytorch_tanh, biases; layer norms before"}));
  EXPECT_EQ(
      lines_of(recipe_of(find_model("llama-3.1-8b"))),
      (Lines{"every layer: 32 heads of 128 (8 of keys), rotary 500000, llama3 8; MLP 14336 gated silu; rms "
             "norms before"}));
  const Lines gemma = lines_of(recipe_of(find_model("gemma-3-1b")));
  ASSERT_EQ(gemma.size(), 3u);
  EXPECT_EQ(
      gemma[0],
      "layers 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 24, 25: 4 heads of 256 "
      "(1 of keys), window 512, scale 0.0625, rotary 10000, heads normalized; MLP 6912 gated "
      "gelu_pytorch_tanh; rms norms (1 + w) before and after");
  EXPECT_EQ(
      gemma[1],
      "layers 5, 11, 17, 23: 4 heads of 256 (1 of keys), scale 0.0625, rotary 1e+06, heads normalized; MLP "
      "6912 gated gelu_pytorch_tanh; rms norms (1 + w) before and after");
  EXPECT_EQ(gemma[2], "embedding times 33.9411");
  EXPECT_EQ(lines_of(recipe_of(find_model("gemma-2-2b"))).back(), "logits capped at 30");
}

// Every choice of a config reaches the recipes of the right layers.
TEST(Recipes, DifferIfTheirConfigsDiffer) {
  const ModelConfig base = find_model("gemma-2-2b");
  const Recipe plain = recipe_of(base);
  EXPECT_EQ(plain, recipe_of(base));
  const std::function<void(ModelConfig&)> changes[] = {
      [](ModelConfig& c) { c.window = 100; },
      [](ModelConfig& c) { c.layer_kinds[4] = LayerKind::full; },
      [](ModelConfig& c) { c.query_scalar = 100; },
      [](ModelConfig& c) { c.attention_cap = 0; },
      [](ModelConfig& c) { c.logit_cap = 0; },
      [](ModelConfig& c) { c.local_rope_theta = 5000; },
      [](ModelConfig& c) { c.activation = kernels::Activation::silu; },
      [](ModelConfig& c) { c.norm_eps = 1e-5f; },
      [](ModelConfig& c) { c.dropout = 0.1f; },
      [](ModelConfig& c) { c.attention_dropout = 0.1f; },
      [](ModelConfig& c) { c.qkv_bias = true; },
      [](ModelConfig& c) { c.output_bias = true; }};
  for (const auto& change : changes) {
    ModelConfig c = base;
    change(c);
    EXPECT_NE(recipe_of(c), plain) << &change - changes;
  }
  for (size_t l = 0; l < plain.blocks.size(); ++l)
    EXPECT_EQ(plain.blocks[l].attention.window, l % 2 == 0 ? 4096 : 0) << l;
  EXPECT_EQ(plain.embedding_scale, 48);
}

}  // namespace
}  // namespace cleave::model
