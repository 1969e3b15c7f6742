// The dense layer's arithmetic, shared by every layer that has one: y = x @ weight^T + bias, weight [out,
// in].
#pragma once
#include "model/layer.h"

namespace cleave {

struct Linear {
  int64_t in = 0, out = 0;
  Tensor weight = {}, bias = {};  // bias may be undefined; the weights' gradients need neither

  void forward(Tensor y, Tensor x, Stream& stream) const;
  // dx may be undefined; dbias is null without a bias. Both parts below.
  void backward(Tensor dx, Tensor dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                Stream& stream) const;
  void backward_input(Tensor dx, Tensor dy, Stream& stream) const;
  void backward_weight(Tensor dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                       Stream& stream) const;
};

}  // namespace cleave
