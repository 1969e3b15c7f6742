// Decoder-only transformers: an embedding, blocks, a norm and a head. A model is two values: its family,
// which says what blocks are made of and what parameters are called (model/family.h), and its sizes.
#pragma once
#include "kernels/activation.h"
#include "model/axes.h"
#include "model/layer.h"
#include "model/rope.h"

namespace cleave::model {

struct Family;

struct ModelConfig {
  const Family* family = nullptr;
  int64_t vocab = 0, positions = 0, width = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t mlp_width = 0;        // of the columns in the middle; of a gated unit, of each of its two halves
  float dropout = 0;            // on the embedding and on both residual branches
  float attention_dropout = 0;  // on the weights that attention's softmax gives
  float norm_eps = 0;
  kernels::Activation activation = kernels::Activation::gelu_tanh;  // of an MLP that is not gated
  double rope_theta = 10000;
  RopeScaling rope = {};
  int64_t window = 0;  // a position attends to so many positions, itself included; 0: to all before it
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
