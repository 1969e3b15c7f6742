#include "tensor_parallel/tensor_axis.h"

#include <fmt/ranges.h>

#include <utility>

namespace cleave::tensor_parallel {

int64_t TensorAxis::local_rows(int64_t rows) const {
  if (!cut_rows_) return rows;
  require(rows % size() == 0, Exit::usage,
          "tensor_parallel.sequence_parallel: {} rows of a micro-batch are not divisible by {} "
          "tensor-parallel ranks; choose another sequence length or micro-batch size, or set it to false",
          rows, size());
  return rows / size();
}

Range TensorAxis::mine(int64_t count, const char* what) const {
  if (count % size() != 0) {
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= count && sizes.size() < 12; ++n)
      if (count % n == 0) sizes.push_back(n);
    fail(Exit::usage, "tensor_parallel.autotp_size: {} {} are not divisible by {} ranks (expected {})", count,
         what, size(), fmt::join(sizes, ", "));
  }
  return Range{0, count / size()}.shifted(rank() * (count / size()));
}

ParamSpec TensorAxis::cut(ParamSpec p, int dim, std::vector<int64_t> blocks) const {
  if (!ranks_) return p;
  int64_t& length = p.shape[size_t(dim)];
  if (blocks.empty()) blocks = {length};
  length = 0;
  for (const int64_t extent : blocks) {
    CHECK(extent % size() == 0, "{}: a block of {} over {} ranks", p.name, extent, size());
    length += extent / size();
  }
  p.cuts.push_back(
      {Axis::tensor, {.dim = dim, .extents = std::move(blocks), .rank = rank(), .ranks = size()}});
  return p;
}

ParamSpec TensorAxis::cut_padded(ParamSpec p, int dim) const {
  int64_t& length = p.shape[size_t(dim)];
  const int64_t count = std::exchange(length, padded_part(length).size);
  if (ranks_ || length != count)
    p.cuts.push_back({Axis::tensor, {.dim = dim, .extents = {count}, .rank = rank(), .ranks = size()}});
  return p;
}

Tensor TensorAxis::all_rows_of(Tensor local, Arena& scratch) const {
  if (!cut_rows_) return local;
  Shape shape = local.shape();
  shape.dims[0] *= size();
  return scratch.take(local.dtype(), shape);
}

// Uses steps of 64 rows, a multiple of the kernels' tiles; the last piece gets the rest.
std::vector<Range> TensorAxis::pieces(int64_t rows) const {
  constexpr int64_t kMost = 4, kStep = 64;
  const int64_t least = beside_.stream ? beside_.least_rows : 0;
  const int64_t count = least > 0 ? std::clamp<int64_t>(rows / least, 1, kMost) : 1;
  const int64_t step = std::min(kStep, std::max<int64_t>(1, least)), each = rows / count / step * step;
  std::vector<Range> out;
  for (int64_t i = 0; i < count; ++i) out.push_back({i * each, i + 1 < count ? (i + 1) * each : rows});
  return out;
}

Event TensorAxis::move(comm::Collective op, Tensor all, Tensor local, Range rows, Order order, Stream& stream,
                       std::string_view what) const {
  if (stream.discards()) return {};
  Stream& on = beside_.stream ? *beside_.stream : stream;
  if (beside_.stream) on.wait(stream.record());
  const int64_t width = local.numel() / local.dim(0);
  const Range mine{rows.begin * width, rows.end * width};
  comm::Call call{.what = what};
  if (op == comm::Collective::all_reduce) {
    ranks_->all_reduce(all.slice(mine), on, call);
  } else {
    if (order == Order::rank)
      call.within = mine;
    else
      all = all.slice({mine.begin * size(), mine.end * size()}), local = local.slice(mine);
    op == comm::Collective::all_gather ? ranks_->all_gather(all, local, on, call)
                                       : ranks_->reduce_scatter(local, all, on, call);
  }
  return beside_.stream ? on.record() : Event();
}

Event TensorAxis::start_gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const {
  if (!cut_rows_) return {};
  return move(comm::Collective::all_gather, all, local, {0, local.dim(0)}, Order::rank, stream, what);
}

Event TensorAxis::start_sum(Tensor local, Tensor all, Range rows, Stream& stream,
                            std::string_view what) const {
  const auto op = cut_rows_ ? comm::Collective::reduce_scatter : comm::Collective::all_reduce;
  return ranks_ ? move(op, all, local, rows, Order::piece, stream, what) : Event();
}

std::vector<TensorAxis::Gathered> TensorAxis::start_gathers(Tensor all, Tensor local, Order order,
                                                            Stream& stream, std::string_view what) const {
  const int64_t each = local.dim(0);
  if (!cut_rows_ || !beside_.stream || each < beside_.least_rows || beside_.least_rows == 0)
    return {{{0, all.dim(0)}, all, start_gather(all, local, stream, what)}};
  std::vector<Gathered> out = {{Range{0, each}.shifted(rank() * each), local}};
  for (const Range& piece : pieces(each)) {
    Event here = move(comm::Collective::all_gather, all, local, piece, order, stream, what);
    for (int r = 0; r < size(); ++r)
      if (r != rank())  // one wait per piece is enough
        out.push_back(
            {piece.shifted(r * each), all.rows(place(piece, r, each, order)), std::exchange(here, {})});
  }
  return out;
}

std::vector<TensorAxis::Summand> TensorAxis::summands(int64_t local_rows) const {
  const std::vector<Range> pieces = this->pieces(local_rows);
  const Range all{0, all_rows(local_rows)};
  if (!ranks_ || pieces.size() == 1) return {{{{all, all}}, {0, local_rows}}};
  std::vector<Summand> out;
  for (const Range& piece : pieces) {
    Summand& summand = out.emplace_back(Summand{{}, piece});
    if (!cut_rows_) summand.products.push_back({piece, piece});
    for (int r = 0; cut_rows_ && r < size(); ++r)
      summand.products.push_back({piece.shifted(r * local_rows), place(piece, r, local_rows, Order::piece)});
  }
  return out;
}

void TensorAxis::exchange(Tensor every, Tensor mine, Stream& stream, std::string_view what) const {
  CHECK(ranks_, "a single rank has no peer for {}", what);
  if (stream.discards()) return;
  Stream& on = beside_.stream ? *beside_.stream : stream;
  if (beside_.stream) on.wait(stream.record());
  ranks_->all_gather(every, mine, on, {.what = what});
  if (beside_.stream) stream.wait(on.record());
}

}  // namespace cleave::tensor_parallel
