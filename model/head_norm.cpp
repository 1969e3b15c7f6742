#include "model/head_norm.h"

#include "kernels/elementwise.h"

namespace cleave::model {

HeadNorm::HeadNorm(const Config& c) : c_(c), norm_(Norm::Kind::rms, c.name, c.head_dim, c.eps, c.offset) {
  if (c.partial) norm_.sum_gradients_over_ranks();
}

HeadNorm::Kept HeadNorm::keep(Arena& arena, int64_t rows, DType type) const {
  Kept kept;
  kept.x = arena.take(type, {rows * c_.heads, c_.head_dim});
  kept.statistics = norm_.keep(arena, rows * c_.heads);
  return kept;
}

void HeadNorm::take(Tensor heads, Tensor rows, Stream& stream) const {
  const int64_t width = c_.heads * c_.head_dim;
  kernels::launch(kernels::CopyRuns{.y = heads,
                                    .x = rows.slice({c_.first_column, rows.numel()}),
                                    .width = width,
                                    .inner = {rows.dim(0), width, c_.row_width}},
                  stream);
}

void HeadNorm::put(Tensor rows, Tensor heads, Stream& stream) const {
  const int64_t width = c_.heads * c_.head_dim;
  kernels::launch(kernels::CopyRuns{.y = rows.slice({c_.first_column, rows.numel()}),
                                    .x = heads,
                                    .width = width,
                                    .inner = {rows.dim(0), c_.row_width, width}},
                  stream);
}

void HeadNorm::forward(Tensor rows, const Kept& kept, std::span<const Tensor> params, Arena& scratch,
                       Stream& stream) const {
  const int64_t mark = scratch.mark();
  const Tensor y = scratch.take(kept.x.dtype(), kept.x.shape());
  take(kept.x, rows, stream);
  norm_.forward(y, {.x = kept.x}, kept.statistics, params, stream);
  put(rows, y, stream);
  scratch.release(mark);
}

Norm::Gradients HeadNorm::backward(Tensor drows, const Kept& kept, const BackwardArgs& a) const {
  const Norm::Gradients gradients = norm_.gradients(a);
  const int64_t mark = a.scratch.mark();
  const Tensor d = a.scratch.take(kept.x.dtype(), kept.x.shape());
  take(d, drows, a.stream);
  norm_.backward({.dx = d, .dy = d, .x = kept.x}, kept.statistics, a.params, gradients, a.stream);
  put(drows, d, a.stream);
  a.scratch.release(mark);
  return gradients;
}

}  // namespace cleave::model
