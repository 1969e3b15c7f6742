// The dense layer's arithmetic over a tensor axis (arXiv 1909.08053). A layer whose outputs are cut
// multiplies gathered rows; one whose inputs are cut gives partial sums. Movements overlap with the products
// next to them as far as the axis says (TensorAxis).
#pragma once
#include "model/linear.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::model {

struct CutLinear {
  const tensor_parallel::TensorAxis& axis;
  Stream& stream;
  std::string_view what;  // for reports; outlives the stream's work

  // All rows of `local`: scratch where rows are cut, else `local` itself. They are there once the event is.
  struct Gathering {
    Tensor all;
    Event here;
  };
  Gathering start_gather(Tensor local, Arena& scratch) const;

  // Outputs cut: y, of all rows, from the gathered x.
  void forward_gathered(const Linear& linear, Tensor y, Tensor x, Arena& scratch) const;
  // The same with f behind it: hidden as y above, y = f(hidden).
  void forward_active(const Linear& linear, Tensor y, Tensor hidden, Tensor x, Nonlinearity f,
                      Arena& scratch) const;
  // Inputs cut: y = its rows of the sum over ranks. `partial` is y with all rows, as all_rows_of gives it;
  // what is in it then is nobody's.
  void forward_summed(const Linear& linear, Tensor y, Tensor partial, Tensor x) const;

  // Inputs cut: dx, of all rows, from the gathered dy. Returns all rows of dy, in the order of ranks.
  Tensor backward_gathered(const Linear& linear, Tensor dx, Tensor dy, Arena& scratch) const;
  // The same where x = f(hidden): goes on to hidden's gradient. dx is room for that of a gated x.
  Tensor backward_active(const Linear& linear, Tensor dhidden, Tensor dx, Tensor hidden, Tensor dy,
                         Nonlinearity f, Arena& scratch) const;
  // Outputs cut: dx = its rows of the sum over ranks, once the event is there: products of the weights'
  // gradients may run before it. `partial` is dx with all rows.
  [[nodiscard]] Event backward_summed(const Linear& linear, Tensor dx, Tensor partial, Tensor dy) const;
};

}  // namespace cleave::model
