// Decoder-only transformers: an embedding, blocks, a norm and a head. A model is two values: its family,
// which says what blocks are made of and what parameters are called (model/family.h), and its sizes. Both
// become a recipe for each block (model/recipe.h).
#pragma once
#include <optional>
#include <vector>

#include "kernels/activation.h"
#include "model/axes.h"
#include "model/layer.h"
#include "model/rope.h"

namespace cleave::model {

struct Family;

// What a layer's attention sees: a window, or all positions before its own.
enum class LayerKind : uint8_t { sliding, full };

struct ModelConfig {
  const Family* family = nullptr;
  int64_t vocab = 0, positions = 0, width = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t mlp_width = 0;        // of the columns in the middle; of a gated unit, of each of its two halves
  float dropout = 0;            // on the embedding and on both residual branches
  float attention_dropout = 0;  // on the weights that attention's softmax gives
  float norm_eps = 0;
  std::optional<kernels::Activation> activation = {};  // of the MLP; the family's where it is not said
  double rope_theta = 10000;
  RopeScaling rope = {};
  double local_rope_theta = 0;  // of sliding layers, unscaled; 0: as the others
  int64_t window = 0;  // a position attends to so many positions, itself included; 0: to all before it
  std::vector<LayerKind> layer_kinds = {};  // of each layer; none: the window is every layer's
  double query_scalar = 0;                  // scores are divided by its root; 0: head_dim
  float attention_cap = 0, logit_cap = 0;   // soft caps of attention's scores and of the logits; 0: none
  // Attention sees its own document only, and positions begin anew in each: batches say where documents
  // begin.
  bool document_mask = false;
  bool tied = false;         // the head's weight is the embedding's
  bool qkv_bias = false;     // of the projections to queries, keys and values
  bool output_bias = false;  // of attention's output projection
  float init_scale = 0.02f;  // standard deviation of every matrix
  bool operator==(const ModelConfig&) const = default;
};

// Samples are token windows: input [seq] int32, targets [seq] int32. seq may be at most config.positions.
// Heads, key/value heads, the MLP and the vocabulary are cut over the tensor axis, positions over the
// sequence axis. Error(usage) for sizes that do not fit together, and for what an axis does not divide.
Model make_model(const ModelConfig& config, DType dtype, int64_t seq, std::string name,
                 const Axes& axes = {});

}  // namespace cleave::model
