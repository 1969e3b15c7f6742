#include "model/cut_linear.h"

namespace cleave::model {
namespace {

Tensor matrix(const Tensor& x, int64_t width) { return x.view({x.numel() / width, width}); }

// Rows of a result; of one without memory, in a dry run, a tensor without memory.
Tensor rows_of(const Tensor& t, Range rows) {
  const Tensor part = t.rows(rows);
  return t.raw() ? part : Tensor(nullptr, t.dtype(), part.shape(), t.memory());
}

}  // namespace

CutLinear::Gathering CutLinear::start_gather(Tensor local, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(local, scratch);
  return {all, axis.start_gather(all, local, stream, what)};
}

Tensor CutLinear::forward_gathered(const Linear& linear, Tensor y, Tensor x, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(x, scratch), out = matrix(y, linear.out);
  axis.gather(all, x, stream, what,
              [&](Range rows, Tensor x_rows) { linear.forward(rows_of(out, rows), x_rows, stream); });
  return all;
}

Tensor CutLinear::forward_active(const Linear& linear, Tensor y, Tensor hidden, Tensor x,
                                 kernels::Activation f, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(x, scratch), out = matrix(y, linear.out),
               before = matrix(hidden, linear.out);
  axis.gather(all, x, stream, what, [&](Range rows, Tensor x_rows) {
    linear.forward_active(rows_of(out, rows), rows_of(before, rows), x_rows, f, stream);
  });
  return all;
}

void CutLinear::forward_summed(const Linear& linear, Tensor y, Tensor partial, Tensor x) const {
  const Tensor in = matrix(x, linear.in);
  stream.wait(axis.start_sum(y, partial, stream, what, [&](Range rows) {
    linear.forward(rows_of(partial, rows), in.rows(rows), stream);
  }));
}

Tensor CutLinear::backward_gathered(const Linear& linear, Tensor dx, Tensor dy, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(dy, scratch), out = matrix(dx, linear.in);
  axis.gather(all, dy, stream, what, [&](Range rows, Tensor dy_rows) {
    linear.backward_input(rows_of(out, rows), dy_rows, stream);
  });
  return all;
}

Tensor CutLinear::backward_active(const Linear& linear, Tensor dhidden, Tensor hidden, Tensor dy,
                                  kernels::Activation f, Arena& scratch) const {
  const Tensor all = axis.all_rows_of(dy, scratch), out = matrix(dhidden, linear.in),
               before = matrix(hidden, linear.in);
  axis.gather(all, dy, stream, what, [&](Range rows, Tensor dy_rows) {
    linear.backward_active(rows_of(out, rows), dy_rows, rows_of(before, rows), f, stream);
  });
  return all;
}

Event CutLinear::backward_summed(const Linear& linear, Tensor dx, Tensor partial, Tensor dy) const {
  const Tensor in = matrix(dy, linear.out);
  return axis.start_sum(dx, partial, stream, what, [&](Range rows) {
    linear.backward_input(rows_of(partial, rows), in.rows(rows), stream);
  });
}

}  // namespace cleave::model
