#include "model/cut_linear.h"

namespace cleave::model {
namespace {

using tensor_parallel::TensorAxis;

Tensor matrix(const Tensor& x, int64_t width) { return x.view({x.numel() / width, width}); }

}  // namespace

CutLinear::Gathering CutLinear::start_gather(Tensor local, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(local, scratch);
  return {all, axis.start_gather(all, local, stream, what)};
}

void CutLinear::forward_gathered(const Linear& linear, Tensor y, Tensor x, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(x, scratch), out = matrix(y, linear.out);
  for (const TensorAxis::Gathered& in : axis.start_gathers(all, x, TensorAxis::Order::piece, stream, what)) {
    stream.wait(in.here);
    linear.of_rows(in.rows).forward(rows_of(out, in.rows), in.x, stream);
  }
}

void CutLinear::forward_active(const Linear& linear, Tensor y, Tensor hidden, Tensor x, Nonlinearity f,
                               Arena& scratch) const {
  const Tensor all = axis.all_rows_of(x, scratch), out = matrix(y, f.width(linear.out)),
               before = matrix(hidden, linear.out);
  for (const TensorAxis::Gathered& in : axis.start_gathers(all, x, TensorAxis::Order::piece, stream, what)) {
    stream.wait(in.here);
    linear.of_rows(in.rows).forward_active(rows_of(out, in.rows), rows_of(before, in.rows), in.x, f, stream);
  }
}

void CutLinear::forward_summed(const Linear& linear, Tensor y, Tensor partial, Tensor x) const {
  const Tensor in = matrix(x, linear.in);
  Event last;
  for (const TensorAxis::Summand& piece : axis.summands(y.dim(0))) {
    for (const auto& [rows, terms] : piece.products)
      linear.of_rows(rows).forward(rows_of(partial, terms), in.rows(rows), stream);
    last = axis.start_sum(y, partial, piece.rows, stream, what);
  }
  stream.wait(last);
}

Tensor CutLinear::backward_gathered(const Linear& linear, Tensor dx, Tensor dy, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(dy, scratch), out = matrix(dx, linear.in);
  for (const TensorAxis::Gathered& in : axis.start_gathers(all, dy, TensorAxis::Order::rank, stream, what)) {
    stream.wait(in.here);
    linear.of_rows(in.rows).backward_input(rows_of(out, in.rows), in.x, stream);
  }
  return all;
}

Tensor CutLinear::backward_active(const Linear& linear, Tensor dhidden, Tensor dx, Tensor hidden, Tensor dy,
                                  Nonlinearity f, Arena& scratch) const {
  const int64_t wide = f.gated ? 2 * linear.in : linear.in;
  const Tensor all = axis.all_rows_of(dy, scratch), out = matrix(dhidden, wide),
               before = matrix(hidden, wide);
  for (const TensorAxis::Gathered& in : axis.start_gathers(all, dy, TensorAxis::Order::rank, stream, what)) {
    stream.wait(in.here);
    linear.of_rows(in.rows).backward_active(rows_of(out, in.rows), f.gated ? rows_of(dx, in.rows) : Tensor(),
                                            in.x, rows_of(before, in.rows), f, stream);
  }
  return all;
}

Event CutLinear::backward_summed(const Linear& linear, Tensor dx, Tensor partial, Tensor dy) const {
  const Tensor in = matrix(dy, linear.out);
  Event last;
  for (const TensorAxis::Summand& piece : axis.summands(dx.dim(0))) {
    for (const auto& [rows, terms] : piece.products)
      linear.of_rows(rows).backward_input(rows_of(partial, terms), in.rows(rows), stream);
    last = axis.start_sum(dx, partial, piece.rows, stream, what);
  }
  return last;
}

}  // namespace cleave::model
