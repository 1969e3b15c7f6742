// The Llama family (arXiv 2302.13971, 2407.21783) and Qwen2 (arXiv 2407.10671): RMS norm before attention and
// MLP, rotary positions, grouped key/value heads, SwiGLU. Parameters have Hugging Face's names and shapes.
#pragma once
#include "model/axes.h"
#include "model/layer.h"
#include "model/rope.h"

namespace cleave {

struct LlamaConfig {
  int64_t vocab = 32000, positions = 2048, width = 4096, layers = 32;
  int64_t heads = 32, kv_heads = 32, head_dim = 128;
  int64_t mlp_width = 11008;  // of each of the gated unit's two halves
  float norm_eps = 1e-6f;
  double rope_theta = 10000;
  RopeScaling rope = {};
  bool tied = false;         // the head's weight is the embedding's
  bool qkv_bias = false;     // Qwen2 has it
  bool output_bias = false;  // of attention's output projection; a Llama with attention_bias has both
  float init_scale = 0.02f;  // standard deviation of every matrix
  bool operator==(const LlamaConfig&) const = default;
};

// Samples are token windows: input [seq] int32, targets [seq] int32. seq may be at most config.positions.
// Heads, key/value heads, the MLP and the vocabulary are cut over the tensor axis, positions over the
// sequence axis. Error(usage) for sizes that do not fit together, and for what an axis does not divide.
Model make_llama(const LlamaConfig& config, DType dtype, int64_t seq, std::string name = "llama",
                 const Axes& axes = {});

}  // namespace cleave
