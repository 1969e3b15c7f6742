// Sequence axis of the layers (DeepSpeed-Ulysses, arXiv 2309.14509): its ranks work on the same samples with
// the same parameters, each on one part of the positions. Only attention looks at other positions; around it
// the ranks exchange "all heads of my positions" for "my heads of all positions".
#pragma once
#include "comm/communicator.h"
#include "device/arena.h"

namespace cleave::tensor_parallel {

// Adjacent columns of heads, such as queries, keys and values. Each group is cut over the ranks. A group with
// fewer heads than ranks is cut over neighborhoods of `copies` ranks that hold the same heads.
struct HeadGroups {
  std::array<int64_t, 3> widths{};
  std::array<int64_t, 3> copies{1, 1, 1};
};

class SequenceAxis {
 public:
  SequenceAxis() = default;  // single rank: all functions are free
  // The communicator must outlive the axis and its copies.
  explicit SequenceAxis(comm::Communicator& ranks) : ranks_(ranks.size() > 1 ? &ranks : nullptr) {}

  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }

  // Returns this rank's positions of a sequence; Error(usage) names valid sizes.
  Range positions(int64_t seq) const;
  // Returns the numbers of query and key/value heads that this rank attends with, out of `heads` and
  // `kv_heads` at its positions, and the number of ranks with the same key/value heads. Throws Error(usage)
  // if the ranks do not divide the query heads, or if neither of key/value heads and ranks divides the other.
  struct Heads {
    int64_t heads = 1, kv_heads = 1, copies = 1;
  };
  Heads heads(int64_t heads, int64_t kv_heads) const;

  // A tensor [rows, width] of this rank's positions has a twin [rows * size, twin_width] of all positions
  // with this rank's heads: scratch memory, or the tensor itself on a single rank.
  int64_t twin_width(const HeadGroups& groups) const;
  Tensor twin_of(Tensor tokens, const HeadGroups& groups, Arena& scratch) const;
  // twin = this rank's heads from the `tokens` of all ranks. Rows are whole samples with `positions` rows
  // each in `tokens`. Uses scratch for both directions of the exchange.
  void to_heads(Tensor twin, Tensor tokens, const HeadGroups& groups, int64_t positions, Arena& scratch,
                Stream& stream, std::string_view what) const;
  // Reverse exchange, also used for gradients: adds the values of several ranks with the same heads.
  void to_tokens(Tensor tokens, Tensor twin, const HeadGroups& groups, int64_t positions, Arena& scratch,
                 Stream& stream, std::string_view what) const;

 private:
  comm::Communicator* ranks_ = nullptr;
};

}  // namespace cleave::tensor_parallel
