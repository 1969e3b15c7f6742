// The tensor axis as layers see it: their heads, columns and vocabulary are cut over its ranks (Megatron-LM,
// arXiv 1909.08053). Between a layer's cut products the rows are whole on every rank, or, with sequence
// parallelism (arXiv 2205.05198), cut over the ranks as well, which stores each activation once for the
// whole axis instead of once a rank and costs the same communication.
//
// A product of columns needs all rows: gather() before it, sum() of its input's gradient behind it. A product
// of rows gives a partial sum of all rows: sum() behind it, gather() of its output's gradient before it.
#pragma once
#include "comm/communicator.h"
#include "core/param_spec.h"
#include "device/arena.h"

namespace cleave {

class TensorAxis {
 public:
  TensorAxis() = default;  // a rank alone: everything here is free
  // The communicator must outlive the axis and its copies.
  explicit TensorAxis(Communicator& ranks, bool sequence_parallel = true)
      : ranks_(ranks.size() > 1 ? &ranks : nullptr), cut_rows_(ranks_ && sequence_parallel) {}

  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  bool cuts_rows() const { return cut_rows_; }

  int64_t all_rows(int64_t local_rows) const { return cut_rows_ ? local_rows * size() : local_rows; }
  // Error(usage) when rows are cut and do not divide.
  int64_t local_rows(int64_t rows) const;
  // This rank's equal part of something that is cut; Error(usage) names `what` and the sizes that would work.
  Range mine(int64_t count, const char* what) const;
  // This rank's part of something that need not divide, such as a vocabulary: `size` is the same on every
  // rank, and what of it is not in `real` is padding.
  struct Padded {
    int64_t size;
    Range real;
  };
  Padded padded_part(int64_t count) const {
    const Range real = part(count, size(), rank());
    return {ceil_div(count, size()), real};
  }

  // The part of a parameter that this rank has when one dim of it is cut, in every one of its equal blocks.
  // Where the dim does not divide, which takes a single block, the last parts end in padding.
  ParamSpec cut(ParamSpec whole, int dim, int64_t blocks = 1) const;

  // A tensor for all rows of `local`: scratch where rows are cut, else `local` itself.
  Tensor all_rows_of(Tensor local, Arena& scratch) const;
  // all = the rows of every rank's `local`. Both are as all_rows_of gave them.
  void gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const;
  // local = its rows of the sum over ranks of `all`, added in rank order.
  void sum(Tensor local, Tensor all, Stream& stream, std::string_view what) const;
  // every[r] = rank r's `mine`; [size, ...] of its shape.
  void exchange(Tensor every, Tensor mine, Stream& stream, std::string_view what) const;

 private:
  Communicator* ranks_ = nullptr;
  bool cut_rows_ = false;
};

}  // namespace cleave
