// Dense layer over a tensor axis (arXiv 1909.08053). A layer with cut outputs multiplies gathered rows; one
// with cut inputs gives partial sums. Transfers overlap with adjacent products if the axis is set so
// (TensorAxis).
#pragma once
#include "model/linear.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::model {

struct CutLinear {
  const tensor_parallel::TensorAxis& axis;
  Stream& stream;
  std::string_view what;  // for reports; must outlive the stream's work

  // All rows of `local`: in scratch if rows are cut, else `local`. Valid after the event.
  struct Gathering {
    Tensor all;
    Event here;
  };
  Gathering start_gather(Tensor local, Arena& scratch) const;

  // Cut outputs: y, for all rows, from the gathered x.
  void forward_gathered(const Linear& linear, Tensor y, Tensor x, Arena& scratch) const;
  // Like forward_gathered, followed by f: hidden as y above, y = f(hidden).
  void forward_active(const Linear& linear, Tensor y, Tensor hidden, Tensor x, Nonlinearity f,
                      Arena& scratch) const;
  // Cut inputs: y = this rank's rows of the sum over ranks. `partial` is y with all rows, from all_rows_of;
  // its contents are unspecified afterwards.
  void forward_summed(const Linear& linear, Tensor y, Tensor partial, Tensor x) const;

  // Cut inputs: dx, for all rows, from the gathered dy. Returns all rows of dy, in rank order.
  Tensor backward_gathered(const Linear& linear, Tensor dx, Tensor dy, Arena& scratch) const;
  // Like backward_gathered for x = f(hidden): also computes the gradient of hidden. dx is scratch memory for
  // a gated x.
  Tensor backward_active(const Linear& linear, Tensor dhidden, Tensor dx, Tensor hidden, Tensor dy,
                         Nonlinearity f, Arena& scratch) const;
  // Cut outputs: dx = this rank's rows of the sum over ranks, valid after the event; products for weight
  // gradients may run before it. `partial` is dx with all rows.
  [[nodiscard]] Event backward_summed(const Linear& linear, Tensor dx, Tensor partial, Tensor dy) const;
};

}  // namespace cleave::model
