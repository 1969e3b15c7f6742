// The sequence axis as layers see it (DeepSpeed-Ulysses, arXiv 2309.14509): its ranks work on the same
// samples, each on one part of the positions, with the same parameters. Only attention looks at other
// positions; around it the ranks exchange "all heads of my positions" for "my heads of all positions".
#pragma once
#include "comm/communicator.h"
#include "device/arena.h"

namespace cleave::tensor_parallel {

// Columns of heads side by side, such as those of queries, keys and values. Each group is cut over the ranks;
// one that has fewer heads than there are ranks, over neighbourhoods of `copies` ranks that have the same.
struct HeadGroups {
  std::array<int64_t, 3> widths{};
  std::array<int64_t, 3> copies{1, 1, 1};
};

class SequenceAxis {
 public:
  SequenceAxis() = default;  // a rank alone: everything here is free
  // The communicator must outlive the axis and its copies.
  explicit SequenceAxis(comm::Communicator& ranks) : ranks_(ranks.size() > 1 ? &ranks : nullptr) {}

  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }

  // This rank's positions of a sequence; Error(usage) names the sizes that would work.
  Range positions(int64_t seq) const;
  // How many of `heads` query heads and `kv_heads` key/value heads, which its positions have, this rank
  // attends with, and how many ranks have the same key/value heads. Error(usage) where the ranks do not
  // divide the query heads, or neither the key/value heads nor these the ranks.
  struct Heads {
    int64_t heads = 1, kv_heads = 1, copies = 1;
  };
  Heads heads(int64_t heads, int64_t kv_heads) const;

  // A tensor [rows, width] of this rank's positions has a twin [rows * size, twin_width] of all positions
  // with this rank's heads: scratch, or for a rank alone the tensor itself.
  int64_t twin_width(const HeadGroups& groups) const;
  Tensor twin_of(Tensor tokens, const HeadGroups& groups, Arena& scratch) const;
  // twin = what the ranks' `tokens` have of this rank's heads. Rows are whole samples, `positions` rows each
  // in `tokens`. Scratch holds what leaves and what comes meanwhile.
  void to_heads(Tensor twin, Tensor tokens, const HeadGroups& groups, int64_t positions, Arena& scratch,
                Stream& stream, std::string_view what) const;
  // The way back, which is also the gradient's: what several ranks have of the same heads is added up.
  void to_tokens(Tensor tokens, Tensor twin, const HeadGroups& groups, int64_t positions, Arena& scratch,
                 Stream& stream, std::string_view what) const;

 private:
  comm::Communicator* ranks_ = nullptr;
};

}  // namespace cleave::tensor_parallel
