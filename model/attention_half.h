// Attention half of a block: projections to queries, keys and values, attention, and the output projection.
#pragma once
#include <optional>

#include "model/attention.h"
#include "model/axes.h"
#include "model/cut_linear.h"
#include "model/dense.h"
#include "model/half.h"
#include "model/head_norm.h"

namespace cleave::model {

// Each rank of a tensor axis has some of the query heads. Key/value heads are cut likewise; with more ranks
// than key/value heads, several ranks compute the same one from projections that are whole on every rank.
class AttentionHalf final : public Half {
 public:
  struct Config {
    std::string name;  // of the block, for reports
    int64_t width = 1, seq = 1;
    int64_t heads = 1, kv_heads = 1, head_dim = 1;
    bool causal = true;  // see AttentionMask
    int64_t window = 0;
    float scale = 0, cap = 0;  // see AttentionForward
    float dropout = 0;         // of the attention weights
    // Parameter names without .weight and .bias. Queries, keys and values have separate names, or one joint
    // name.
    std::vector<std::string> qkv;
    std::string out;
    bool qkv_bias = false, out_bias = false;
    Init init, out_init;
    // Queries and keys are rotated by RopeTable::tensors(); `rotation` selects one of the model's tables.
    bool rotary = false;
    size_t rotation = 0;
    // RMS norm of each query and key head before the rotation; empty: none.
    std::string query_norm = {}, key_norm = {};
    float norm_eps = 1e-6f, norm_offset = 0;
  };
  // Throws Error(usage) if the axes do not divide the heads.
  AttentionHalf(const Config& config, const Axes& axes);

  void declare(std::vector<DeclaredUnit>& units) override;
  void attach(const config::AdapterRule& rule, std::vector<std::string>& linears) override;
  void use_fp8(int64_t& layers) override { qkv_.use_fp8(layers), out_.use_fp8(layers); }
  double flops(int64_t rows) const override;
  KeptHeads kept_heads() const override { return {share_.kv_heads, c_.head_dim}; }
  void forward(const ForwardArgs& args) const override;
  void backward(const BackwardArgs& args) const override;

 private:
  // Heads that this rank computes.
  struct Share {
    int64_t heads = 0, kv_heads = 0;
    Range kv_used = {};  // range of the outputs in use, if every rank has whole key/value projections
  };
  static Share share_of(const Config& config, const tensor_parallel::TensorAxis& axis);
  struct Kept {
    Attention::Kept attention;
    HeadNorm::Kept queries = {}, keys = {};
  };
  struct Waiting {
    Tensor dqkv;
    Norm::Gradients query_norm, key_norm;
  };
  Dense projections(const Config& config) const;
  std::optional<HeadNorm> head_norm(const std::string& name, int64_t heads, int64_t first_head) const;
  template <class Args>
  Attention::Call call(const Args& args, bool train) const;
  // The two products of one backward.
  struct Bound {
    Linear qkv, out;
  };
  // Runs the weight part of a split backward.
  void backward_weight(const BackwardArgs& args, const Bound& bound, const Kept& kept,
                       const Waiting& waiting) const;
  void add_weights(const BackwardArgs& args, const Bound& bound, const Kept& kept,
                   const Linear::OutputGradient& dy, Tensor dqkv, const CutLinear::Gathering& x) const;

  Config c_;
  tensor_parallel::TensorAxis axis_;
  Share share_;
  Attention attention_;
  Dense qkv_, out_;
  std::optional<HeadNorm> query_norm_, key_norm_;
};

}  // namespace cleave::model
