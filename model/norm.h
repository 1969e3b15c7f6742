// Normalization of rows, with its parameters: layer norm with a bias, or root mean square without one.
#pragma once
#include "model/parameter.h"

namespace cleave::model {

class Norm {
 public:
  enum class Kind : uint8_t { layer, rms };
  // Parameters are called name.weight and, of a layer norm, name.bias; [width] each. The offset, of a root
  // mean square, is added to the weight, which then begins at 1 minus it.
  Norm(Kind kind, const std::string& name, int64_t width, float eps, float offset = 0);
  void declare(DeclaredUnit& unit);
  // Where the ranks of a tensor axis normalize different heads with the same weights.
  void sum_gradients_over_ranks();

  // What the backward needs beside the rows that were normalized: [rows] fp32, the mean undefined for rms.
  struct Kept {
    Tensor mean, rstd;
  };
  Kept keep(Arena& arena, int64_t rows) const;

  // x [rows, width] is normalized, or with a residual x + residual, which goes to sum.
  struct Rows {
    Tensor x, residual = {}, sum = {};
  };
  // Called again for the rows that were normalized, it gives the same bits and statistics.
  void forward(Tensor y, const Rows& rows, const Kept& kept, std::span<const Tensor> params,
               Stream& stream) const;

  // Where the parameters' gradients go. They are a by-product of the input's, so the input part of a split
  // backward keeps them, in fp32, until the weights' part.
  struct Gradients {
    Tensor weight, bias;
    bool accumulate_weight = false, accumulate_bias = false;
  };
  Gradients gradients(const BackwardArgs& args) const;
  void add(const Gradients& kept, std::span<ParamGradient> grads, Stream& stream) const;

  // dx = (dresidual if defined, else 0) + the gradient through the norm; x is what was normalized. dx may
  // alias dy or dresidual.
  struct Back {
    Tensor dx, dy, x, dresidual = {};
  };
  void backward(const Back& back, const Kept& kept, std::span<const Tensor> params,
                const Gradients& gradients, Stream& stream) const;

 private:
  Kind kind_;
  float eps_, offset_;
  Parameter weight_, bias_;
};

}  // namespace cleave::model
