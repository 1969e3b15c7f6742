// The dense layer's arithmetic, shared by every layer that has one: y = x @ weight^T + bias, weight [out,
// in].
#pragma once
#include "model/layer.h"

namespace cleave {

struct Linear {
  int64_t in = 0, out = 0;
  Tensor weight, bias;  // bias may be undefined

  void forward(Tensor y, Tensor x, Stream& stream) const;
  // dx may be undefined; dbias is null without a bias.
  void backward(Tensor dx, Tensor dy, Tensor x, ParamGradient& dweight, ParamGradient* dbias,
                Stream& stream) const;
};

}  // namespace cleave
