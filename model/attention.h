// Attention between the projections of a block. If a sequence axis cuts the positions, each rank attends with
// its part of the heads to all positions, and rows are exchanged before and after.
#pragma once
#include "kernels/attention.h"
#include "model/layer.h"
#include "tensor_parallel/sequence_axis.h"

namespace cleave::model {

// Returns the mean number of visible keys per query, as an area: half of the sequence without a window, all
// of it if attention is not causal.
inline double mean_keys(int64_t seq, int64_t window, bool causal = true) {
  if (!causal) return double(seq);
  const double all = double(seq), seen = window > 0 ? std::min(all, double(window)) : all;
  return seen * (1 - seen / (2 * all));
}

class Attention {
 public:
  // Heads of this rank of the tensor axis, over whole sequences of seq positions.
  struct Sizes {
    int64_t seq = 1, heads = 1, kv_heads = 1, head_dim = 1;
    bool causal = true;  // see AttentionMask
    int64_t window = 0;
    float scale = 0, cap = 0;  // see AttentionForward
    // Dropout of the attention weights, and the position of these heads in the model.
    float dropout = 0;
    int64_t first_head = 0, all_heads = 1;
  };
  // Throws Error(usage) if the axis does not divide positions or heads.
  Attention(const Sizes& sizes, const tensor_parallel::SequenceAxis& axis);

  int64_t width() const { return sizes_.heads * sizes_.head_dim; }  // of the output
  int64_t qkv_width() const { return (sizes_.heads + 2 * sizes_.kv_heads) * sizes_.head_dim; }

  // State for the backward. qkv and y cover this rank's heads and all positions; out is y with all heads of
  // this rank's positions, [rows, width], and is the same tensor as y for whole positions.
  struct Kept {
    Tensor qkv, y, lse, out;
  };
  // Allocates the state for `rows` of this rank's positions.
  Kept keep(Arena& arena, int64_t rows, DType type) const;
  // Allocates the state for `rows` of incremental generation, without a sequence axis: queries, keys and
  // values, and the result.
  Kept keep_rows(Arena& arena, int64_t rows, DType type) const;

  // Returns the destination of the projections of `rows`, [rows, qkv_width], before forward(): kept.qkv or
  // scratch.
  Tensor input(const Kept& kept, Arena& scratch) const;
  struct Call {
    Arena& scratch;
    Stream& stream;
    std::string_view what;                  // for reports; must outlive the stream's work
    std::span<const Tensor> rotation = {};  // empty, or RopeTable::tensors() of seq positions
    Tensor documents = {};  // AttentionMask's, of whole sequences on every rank, or undefined; positions
                            // restart in each document
    const Position* trained = nullptr;  // with dropout: position of the micro-batch
  };
  // Fills kept; kept.out is the result.
  void forward(const Kept& kept, Tensor qkv, const Call& call) const;
  // Like forward for rows of incremental generation with projections in kept.qkv: appends their keys and
  // values to the cache and attends to all cached positions.
  void forward(const Kept& kept, const KvCache& cache, const Call& call) const;
  // Computes dqkv [rows, qkv_width] from dout [rows, width]. dqkv must not alias kept.qkv.
  void backward(Tensor dqkv, Tensor dout, const Kept& kept, const Call& call) const;

 private:
  kernels::AttentionDropout dropout(const Call& call) const;
  kernels::AttentionForward product(const Kept& kept, const Call& call) const;
  int64_t batch(const Kept& kept) const { return kept.qkv.dim(0) / sizes_.seq; }
  tensor_parallel::HeadGroups qkv_groups() const;
  void rotate(Tensor qkv, bool inverse, const Call& call) const;

  Sizes sizes_;
  tensor_parallel::SequenceAxis axis_;
  int64_t positions_;                           // this rank's positions of a sequence
  tensor_parallel::SequenceAxis::Heads heads_;  // heads that this rank attends with
};

}  // namespace cleave::model
