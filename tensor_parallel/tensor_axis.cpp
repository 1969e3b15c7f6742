#include "tensor_parallel/tensor_axis.h"

#include <fmt/ranges.h>

namespace cleave {

int64_t TensorAxis::local_rows(int64_t rows) const {
  if (!cut_rows_) return rows;
  require(
      rows % size() == 0, Exit::usage,
      "sequence parallelism cuts the {} rows of a micro-batch over {} tensor ranks, which does not divide; "
      "choose "
      "a sequence length or micro-batch size that does, or set tensor_parallel.sequence_parallel to false",
      rows, size());
  return rows / size();
}

Range TensorAxis::mine(int64_t count, const char* what) const {
  if (count % size() != 0) {
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= count && sizes.size() < 12; ++n)
      if (count % n == 0) sizes.push_back(n);
    fail(Exit::usage, "{} {} cannot be cut over {} tensor ranks; tensor_parallel.autotp_size may be {}",
         count, what, size(), fmt::join(sizes, ", "));
  }
  return Range{0, count / size()}.shifted(rank() * (count / size()));
}

ParamSpec TensorAxis::cut(ParamSpec p, int dim, int64_t blocks) const {
  if (!ranks_) return p;
  int64_t& length = p.shape[size_t(dim)];
  const int64_t extent = div_exact(length, blocks), each = ceil_div(extent, size());
  CHECK(blocks == 1 || extent % size() == 0, "{}: blocks of {} over {} ranks", p.name, extent, size());
  p.split = {.dim = dim, .blocks = blocks, .extent = extent, .begin = each * rank()};
  length = blocks * each;
  return p;
}

Tensor TensorAxis::all_rows_of(Tensor local, Arena& scratch) const {
  if (!cut_rows_) return local;
  Shape shape = local.shape();
  shape.dims[0] *= size();
  return scratch.take(local.dtype(), shape);
}

void TensorAxis::gather(Tensor all, Tensor local, Stream& stream, std::string_view what) const {
  if (cut_rows_ && !stream.discards()) ranks_->all_gather(all, local, stream, {.what = what});
}

void TensorAxis::sum(Tensor local, Tensor all, Stream& stream, std::string_view what) const {
  if (!ranks_ || stream.discards()) return;
  cut_rows_ ? ranks_->reduce_scatter(local, all, stream, {.what = what})
            : ranks_->all_reduce(all, stream, {.what = what});
}

void TensorAxis::exchange(Tensor every, Tensor mine, Stream& stream, std::string_view what) const {
  CHECK(ranks_, "a rank alone has nobody to exchange {} with", what);
  if (!stream.discards()) ranks_->all_gather(every, mine, stream, {.what = what});
}

}  // namespace cleave
