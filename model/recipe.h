// What a transformer is made of, as a value: a recipe for each of its blocks and what stands around them.
// Layers are made from this alone (model/transformer.cpp); a family and the fields of a config.json are where
// it comes from.
#pragma once
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "model/norm.h"
#include "model/rope.h"

namespace cleave::model {

struct ModelConfig;

struct NormRecipe {
  Norm::Kind kind = Norm::Kind::rms;
  float eps = 1e-6f;
  float offset = 0;  // added to the weight: 1 where weights begin at 0
  bool operator==(const NormRecipe&) const = default;
};

// Positions as angles that queries and keys are turned by.
struct Rotation {
  int64_t head_dim = 0;
  double theta = 10000;
  RopeScaling scaling = {};
  bool operator==(const Rotation&) const = default;
};

struct AttentionRecipe {
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t window = 0;       // a position sees so many, itself included; 0: all before it
  float scale = 0;          // of scores; 0: 1 / sqrt(head_dim)
  float cap = 0;            // a score s becomes cap * tanh(s / cap); 0: as it is
  float dropout = 0;        // of weights
  int rotation = -1;        // of the model's; -1: none
  bool head_norms = false;  // each head of queries and of keys is normalized before it is turned
  bool qkv_bias = false, output_bias = false;
  bool operator==(const AttentionRecipe&) const = default;
};

struct MlpRecipe {
  int64_t width = 1;  // in the middle; of a gated unit, of each of its two halves
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false;  // activation(gate) * up
  bool bias = false;
  bool operator==(const MlpRecipe&) const = default;
};

// x + after(attention(before(x))), then the same with the MLP.
struct BlockRecipe {
  NormRecipe norm = {};  // all of the block's
  bool norm_before = true, norm_after = false;
  AttentionRecipe attention = {};
  MlpRecipe mlp = {};
  float dropout = 0;  // of both branches
  bool operator==(const BlockRecipe&) const = default;
};

struct Recipe {
  float embedding_scale = 1;  // what the embedding's rows are multiplied with
  std::vector<Rotation> rotations = {};
  std::vector<BlockRecipe> blocks = {};
  NormRecipe final_norm = {};
  float logit_cap = 0;  // as attention's, of the head's logits
  bool operator==(const Recipe&) const = default;
};

Recipe recipe_of(const ModelConfig& config);

// "8 heads of 256 (4 of keys), window 4096, ...; MLP 9216 gated gelu_tanh; rms norms (1 + w) before and
// after".
std::string text_of(const BlockRecipe& block, const Recipe& recipe);
// A line for each kind of block with the numbers of its layers, and what is around them where it is not
// plain.
std::vector<std::string> lines_of(const Recipe& recipe);

// The name that config.json files have for it: gelu_tanh is gelu_pytorch_tanh there and gelu_erf gelu.
const char* name_of(kernels::Activation activation);

}  // namespace cleave::model
