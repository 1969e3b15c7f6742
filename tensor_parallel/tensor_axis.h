// Tensor axis of the layers: it cuts their heads, columns and vocabulary (Megatron-LM, arXiv 1909.08053).
// Between a layer's cut products, rows are whole on every rank. With sequence parallelism (arXiv 2205.05198)
// rows are cut as well, which stores each activation once per axis instead of once per rank at the same
// communication cost.
//
// A column-parallel product needs all rows: gather() before it, sum() of its input's gradient after it. A
// row-parallel product gives a partial sum of all rows: sum() after it, gather() of its output's gradient
// before it.
//
// Transfers may overlap the computation on a separate stream. The adjacent product is then cut into pieces of
// rows: while one piece is summed or gathered, the next one is multiplied. A row of a product does not depend
// on the other rows, so pieces change no bits. The caller iterates over pieces as values
// (model/cut_linear.h); a single rank has one piece without a wait.
#pragma once
#include "comm/communicator.h"
#include "core/param_spec.h"
#include "device/arena.h"

namespace cleave::tensor_parallel {

// Overlap of row transfers with the computation.
struct BesideCompute {
  Stream* stream = nullptr;  // null: no overlap, in the order of the computation
  // Minimum rows per piece. With fewer than twice as many rows per rank, or a value of 0, transfers are not
  // cut.
  int64_t least_rows = 0;
};

class TensorAxis {
 public:
  TensorAxis() = default;  // single rank: all functions are free
  // The communicator and the stream must outlive the axis and its copies. While a layer runs, no other calls
  // of this group may be active on another stream.
  explicit TensorAxis(comm::Communicator& ranks, bool sequence_parallel = true, BesideCompute beside = {})
      : ranks_(ranks.size() > 1 ? &ranks : nullptr),
        cut_rows_(ranks_ && sequence_parallel),
        beside_(beside) {}

  int size() const { return ranks_ ? ranks_->size() : 1; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  bool cuts_rows() const { return cut_rows_; }

  int64_t all_rows(int64_t local_rows) const { return cut_rows_ ? local_rows * size() : local_rows; }
  // Throws Error(usage) if rows are cut and do not divide evenly.
  int64_t local_rows(int64_t rows) const;
  // Returns this rank's equal part of a cut dimension; Error(usage) names `what` and valid sizes.
  Range mine(int64_t count, const char* what) const;
  // Returns this rank's part of a vocabulary. `size` is the same on every rank; elements outside `real` are
  // padding, even on a single rank. Products with tokens as columns need whole, aligned tiles, so from
  // kPaddedFrom tokens on every part is a multiple of kTile. Smaller vocabularies would grow too much and are
  // only made equal. The rule depends only on the count, so it is the same in every layout.
  static constexpr int64_t kTile = 128, kPaddedFrom = 4096;
  struct Padded {
    int64_t size;
    Range real;
  };
  Padded padded_part(int64_t count) const {
    const int64_t each = round_up(ceil_div(count, size()), count < kPaddedFrom ? 1 : kTile);
    return {each, Split{.extents = {count}, .rank = rank(), .ranks = size()}.real(count, each)};
  }

  // Returns this rank's part of a parameter cut along one dim, in each of the blocks with these extents,
  // which must divide evenly; empty: a single block.
  ParamSpec cut(ParamSpec whole, int dim, std::vector<int64_t> blocks = {}) const;
  // Like cut for a vocabulary dim, as in padded_part().
  ParamSpec cut_padded(ParamSpec whole, int dim) const;

  // Returns a tensor for all rows of `local`: scratch if rows are cut, else `local` itself.
  Tensor all_rows_of(Tensor local, Arena& scratch) const;
  // all = the rows of every rank's `local`. Both must come from all_rows_of.
  void gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const {
    stream.wait(start_gather(all, local, stream, what));
  }
  // local = this rank's rows of the sum over ranks of `all`, added in rank order.
  void sum(Tensor local, Tensor all, Stream& stream, std::string_view what) const {
    stream.wait(start_sum(local, all, stream, what));
  }
  // Asynchronous variants, started after the work of `stream`. The stream must wait for the event before it
  // uses the result or overwrites the input.
  Event start_gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const;
  Event start_sum(Tensor local, Tensor all, Stream& stream, std::string_view what) const {
    return start_sum(local, all, {0, local.dim(0)}, stream, what);
  }

  // Order of a buffer with all rows: by rank; or by piece, with the rows of every rank for each piece. A
  // piece is then a collective on contiguous memory, which is fastest for GPU transports.
  enum class Order : uint8_t { rank, piece };

  // gather() before a product: all rows in pieces, in order of arrival; this rank's own come first.
  // Computations on `rows` of all read them from `x` after `here`.
  struct Gathered {
    Range rows;
    Tensor x;
    Event here = {};
  };
  std::vector<Gathered> start_gathers(Tensor all, Tensor local, Order order, Stream& stream,
                                      std::string_view what) const;

  // start_sum() after a product, piece by piece: compute the `products`, with terms in piece order, then
  // start_sum() transfers `rows` of every rank's part.
  struct Summand {
    struct Product {
      Range rows, terms;  // rows of all, and their destination in `all`
    };
    std::vector<Product> products;
    Range rows;
  };
  std::vector<Summand> summands(int64_t local_rows) const;
  Event start_sum(Tensor local, Tensor all, Range rows, Stream& stream, std::string_view what) const;
  // every[r] = rank r's `mine`; the shape of every is [size, ...].
  void exchange(Tensor every, Tensor mine, Stream& stream, std::string_view what) const;

 private:
  std::vector<Range> pieces(int64_t rows) const;
  // Transfers `rows` of every rank's `local` after the work of `stream`.
  Event move(comm::Collective op, Tensor all, Tensor local, Range rows, Order order, Stream& stream,
             std::string_view what) const;
  // Returns the place of rank r's rows of a piece in `all`, which has `each` rows per rank.
  Range place(Range piece, int r, int64_t each, Order order) const {
    return order == Order::rank ? piece.shifted(r * each)
                                : Range{0, piece.size()}.shifted(piece.begin * size() + r * piece.size());
  }

  comm::Communicator* ranks_ = nullptr;
  bool cut_rows_ = false;
  BesideCompute beside_;
};

}  // namespace cleave::tensor_parallel
