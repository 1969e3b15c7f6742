// The tensor axis as layers see it: their heads, columns and vocabulary are cut over its ranks (Megatron-LM,
// arXiv 1909.08053). Between a layer's cut products the rows are whole on every rank, or, with sequence
// parallelism (arXiv 2205.05198), cut over the ranks as well, which stores each activation once for the
// whole axis instead of once a rank and costs the same communication.
//
// A product of columns needs all rows: gather() before it, sum() of its input's gradient behind it. A product
// of rows gives a partial sum of all rows: sum() behind it, gather() of its output's gradient before it.
//
// Movements may run beside the computation, on a stream of their own. Then the product next to one is cut
// into pieces of rows: while a piece is summed or gathered, the neighbouring one is multiplied. A row of a
// product does not depend on the other rows, so pieces change no bit. Pieces are values that whoever
// multiplies walks over (model/cut_linear.h); a rank alone has one, with nothing to wait for.
#pragma once
#include "comm/communicator.h"
#include "core/param_spec.h"
#include "device/arena.h"

namespace cleave::tensor_parallel {

// How movements of rows run beside the computation.
struct BesideCompute {
  Stream* stream = nullptr;  // null: in the order of the computation, whole
  // A piece has at least so many rows; where a rank has fewer than twice as many, or this is 0, movements are
  // whole.
  int64_t least_rows = 0;
};

class TensorAxis {
 public:
  TensorAxis() = default;  // a rank alone: everything here is free
  // The communicator and the stream must outlive the axis and its copies. No other calls of this group may be
  // under way on another stream while a layer runs.
  explicit TensorAxis(comm::Communicator& ranks, bool sequence_parallel = true, BesideCompute beside = {})
      : ranks_(ranks.size() > 1 ? &ranks : nullptr),
        cut_rows_(ranks_ && sequence_parallel),
        beside_(beside) {}

  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  bool cuts_rows() const { return cut_rows_; }

  int64_t all_rows(int64_t local_rows) const { return cut_rows_ ? local_rows * size() : local_rows; }
  // Error(usage) when rows are cut and do not divide.
  int64_t local_rows(int64_t rows) const;
  // This rank's equal part of something that is cut; Error(usage) names `what` and the sizes that would work.
  Range mine(int64_t count, const char* what) const;
  // This rank's part of a vocabulary: `size` is the same on every rank, and what of it is not in `real` is
  // padding, also of a rank alone. Products whose columns are tokens want them in whole tiles and aligned, so
  // from kPaddedFrom tokens on every part is a multiple of kTile; smaller vocabularies would grow too much
  // and are only made equal. The rule knows nothing but the count, so it is the same in every layout.
  static constexpr int64_t kTile = 128, kPaddedFrom = 4096;
  struct Padded {
    int64_t size;
    Range real;
  };
  Padded padded_part(int64_t count) const {
    const int64_t each = round_up(ceil_div(count, size()), count < kPaddedFrom ? 1 : kTile);
    return {each, Split{.extents = {count}, .rank = rank(), .ranks = size()}.real(count, each)};
  }

  // The part of a parameter that this rank has when one dim of it is cut, in every one of the blocks of these
  // extents, which divide; none is a single block.
  ParamSpec cut(ParamSpec whole, int dim, std::vector<int64_t> blocks = {}) const;
  // The same of a dim that is a vocabulary, as padded_part() says.
  ParamSpec cut_padded(ParamSpec whole, int dim) const;

  // A tensor for all rows of `local`: scratch where rows are cut, else `local` itself.
  Tensor all_rows_of(Tensor local, Arena& scratch) const;
  // all = the rows of every rank's `local`. Both are as all_rows_of gave them.
  void gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const {
    stream.wait(start_gather(all, local, stream, what));
  }
  // local = its rows of the sum over ranks of `all`, added in rank order.
  void sum(Tensor local, Tensor all, Stream& stream, std::string_view what) const {
    stream.wait(start_sum(local, all, stream, what));
  }
  // The same, begun behind the work of `stream`, which waits for the event before it touches the result or
  // writes what the movement reads.
  Event start_gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const;
  Event start_sum(Tensor local, Tensor all, Stream& stream, std::string_view what) const {
    return start_sum(local, all, {0, local.dim(0)}, stream, what);
  }

  // How a buffer of all rows is ordered: as the ranks have them, or piece by piece, of each the rows of every
  // rank, so that moving one is a collective of memory side by side, which GPUs' transports are best at.
  enum class Order : uint8_t { rank, piece };

  // gather() with a product behind it: all rows in pieces, in the order in which they come; this rank's own
  // come first. What is computed from `rows` of all reads them in `x`, behind `here`.
  struct Gathered {
    Range rows;
    Tensor x;
    Event here = {};
  };
  std::vector<Gathered> start_gathers(Tensor all, Tensor local, Order order, Stream& stream,
                                      std::string_view what) const;

  // start_sum() with a product before it, piece by piece: once the `products` are made, whose terms lie in
  // the order of pieces, start_sum() moves `rows` of every rank's part.
  struct Summand {
    struct Product {
      Range rows, terms;  // rows of all, and those of `all` that they are written to
    };
    std::vector<Product> products;
    Range rows;
  };
  std::vector<Summand> summands(int64_t local_rows) const;
  Event start_sum(Tensor local, Tensor all, Range rows, Stream& stream, std::string_view what) const;
  // every[r] = rank r's `mine`; [size, ...] of its shape.
  void exchange(Tensor every, Tensor mine, Stream& stream, std::string_view what) const;

 private:
  std::vector<Range> pieces(int64_t rows) const;
  // A movement of `rows` of every rank's `local`, behind the work of `stream`.
  Event move(comm::Collective op, Tensor all, Tensor local, Range rows, Order order, Stream& stream,
             std::string_view what) const;
  // Where rank r's rows of a piece are in `all`, of which every rank has `each`.
  Range place(Range piece, int r, int64_t each, Order order) const {
    return order == Order::rank ? piece.shifted(r * each)
                                : Range{0, piece.size()}.shifted(piece.begin * size() + r * piece.size());
  }

  comm::Communicator* ranks_ = nullptr;
  bool cut_rows_ = false;
  BesideCompute beside_;
};

}  // namespace cleave::tensor_parallel
