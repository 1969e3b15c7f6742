// Normalization of rows with parameters: layer norm with a bias, or RMS norm without one.
#pragma once
#include "model/parameter.h"

namespace cleave::model {

class Norm {
 public:
  enum class Kind : uint8_t { layer, rms };
  // Parameters are name.weight and, for a layer norm, name.bias; [width] each. The offset, for RMS norms, is
  // added to the weight, which then starts at 1 - offset.
  Norm(Kind kind, const std::string& name, int64_t width, float eps, float offset = 0);
  void declare(DeclaredUnit& unit);
  // Call if the ranks of a tensor axis normalize different heads with the same weights.
  void sum_gradients_over_ranks();

  // State for the backward in addition to the normalized rows: [rows] fp32; no mean for rms.
  struct Kept {
    Tensor mean, rstd;
  };
  Kept keep(Arena& arena, int64_t rows) const;

  // Normalizes x [rows, width], or with a residual x + residual, which is stored in sum.
  struct Rows {
    Tensor x, residual = {}, sum = {};
  };
  // Repeated calls for the same rows give the same bits and statistics.
  void forward(Tensor y, const Rows& rows, const Kept& kept, std::span<const Tensor> params,
               Stream& stream) const;

  // Destinations of the parameter gradients. These are a by-product of the input's gradient, so the input
  // part of a split backward keeps them in fp32 until the weight part.
  struct Gradients {
    Tensor weight, bias;
    bool accumulate_weight = false, accumulate_bias = false;
  };
  Gradients gradients(const BackwardArgs& args) const;
  void add(const Gradients& kept, std::span<ParamGradient> grads, Stream& stream) const;

  // dx = (dresidual if defined, else 0) + the gradient through the norm; x is the normalized input. dx may
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
