// Structure of a transformer as a value: a recipe for each block, and for the layers around them. Layers are
// made from recipes alone (model/transformer.cpp); recipes come from a family and the fields of a
// config.json.
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
  float offset = 0;  // added to the weight: 1 if weights start at 0
  bool operator==(const NormRecipe&) const = default;
};

// Rotary positions: angles that rotate queries and keys.
struct Rotation {
  int64_t head_dim = 0;
  double theta = 10000;
  RopeScaling scaling = {};
  bool operator==(const Rotation&) const = default;
};

struct AttentionRecipe {
  int64_t heads = 1, kv_heads = 1, head_dim = 1;
  int64_t window = 0;       // number of visible positions, including the current one; 0: all earlier ones
  float scale = 0;          // scale of scores; 0: 1 / sqrt(head_dim)
  float cap = 0;            // a score s becomes cap * tanh(s / cap); 0: no cap
  float dropout = 0;        // of attention weights
  int rotation = -1;        // index into Recipe::rotations; -1: none
  bool head_norms = false;  // normalizes each query and key head before the rotation
  bool qkv_bias = false, output_bias = false;
  bool operator==(const AttentionRecipe&) const = default;
};

struct MlpRecipe {
  int64_t width = 1;  // middle width; for a gated unit the width of each half
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  bool gated = false;  // activation(gate) * up
  bool bias = false;
  bool operator==(const MlpRecipe&) const = default;
};

// x + after(attention(before(x))), then the same with the MLP.
struct BlockRecipe {
  NormRecipe norm = {};  // for all norms of the block
  bool norm_before = true, norm_after = false;
  AttentionRecipe attention = {};
  MlpRecipe mlp = {};
  float dropout = 0;  // of both branches
  bool operator==(const BlockRecipe&) const = default;
};

struct Recipe {
  float embedding_scale = 1;  // factor of the embedding's rows
  std::vector<Rotation> rotations = {};
  std::vector<BlockRecipe> blocks = {};
  NormRecipe final_norm = {};
  float logit_cap = 0;  // cap of the head's logits, as for attention
  bool operator==(const Recipe&) const = default;
};

Recipe recipe_of(const ModelConfig& config);

// Example: "8 heads of 256 (4 of keys), window 4096, ...; MLP 9216 gated gelu_tanh; rms norms (1 + w) before
// and after".
std::string text_of(const BlockRecipe& block, const Recipe& recipe);
// Returns a line for each kind of block with the numbers of its layers, and lines for unusual settings around
// them.
std::vector<std::string> lines_of(const Recipe& recipe);

// Returns the name in config.json files: gelu_pytorch_tanh for gelu_tanh, gelu for gelu_erf.
const char* name_of(kernels::Activation activation);

}  // namespace cleave::model
