// Decoder-only transformers: an embedding, blocks, a norm and a head. A model is given by its family, which
// defines the structure of blocks and parameter names (model/family.h), and its sizes. Both determine the
// recipe of each block (model/recipe.h).
#pragma once
#include <optional>
#include <vector>

#include "kernels/activation.h"
#include "model/axes.h"
#include "model/layer.h"
#include "model/rope.h"

namespace cleave::model {

struct Family;

// Attention range of a layer: a window, or all earlier positions.
enum class LayerKind : uint8_t { sliding, full };

struct ModelConfig {
  const Family* family = nullptr;
  int64_t vocab = 0, positions = 0, width = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t mlp_width = 0;        // middle columns; for a gated unit the width of each half
  float dropout = 0;            // on the embedding and on both residual branches
  float attention_dropout = 0;  // on the attention weights after the softmax
  float norm_eps = 0;
  std::optional<kernels::Activation> activation = {};  // of the MLP; default: the family's
  double rope_theta = 10000;
  RopeScaling rope = {};
  double local_rope_theta = 0;  // for sliding layers, unscaled; 0: same as the others
  int64_t window = 0;           // number of visible positions, including the current one; 0: all earlier ones
  std::vector<LayerKind> layer_kinds = {};  // by layer; empty: the window applies to every layer
  double query_scalar = 0;                  // scores are divided by its square root; 0: head_dim
  float attention_cap = 0, logit_cap = 0;   // soft caps of attention scores and logits; 0: none
  // Attention sees only its own document, and positions restart in each: batches give the starts of
  // documents.
  bool document_mask = false;
  bool tied = false;         // the head uses the embedding's weight
  bool qkv_bias = false;     // of the query, key and value projections
  bool output_bias = false;  // of attention's output projection
  float init_scale = 0.02f;  // standard deviation of all matrices
  bool operator==(const ModelConfig&) const = default;
};

// Makes a model for token windows: input [seq] int32, targets [seq] int32, seq <= config.positions. The
// tensor axis cuts heads, key/value heads, the MLP and the vocabulary; the sequence axis cuts positions.
// Throws Error(usage) for incompatible sizes, and for sizes that an axis does not divide.
Model make_model(const ModelConfig& config, DType dtype, int64_t seq, std::string name,
                 const Axes& axes = {});

}  // namespace cleave::model
