// RMS norm of each head among the columns of rows that hold several kinds of heads, as queries and keys have
// it in Qwen3 (arXiv 2505.09388).
#pragma once
#include "model/norm.h"

namespace cleave::model {

class HeadNorm {
 public:
  struct Config {
    std::string name;  // of the parameter without .weight, [head_dim]
    int64_t head_dim = 1, heads = 1;
    int64_t first_column = 0, row_width = 1;  // where the heads lie in a row
    float eps = 1e-6f;
    float offset = 0;      // Norm's
    bool partial = false;  // ranks of a tensor axis normalize different heads with the same weight
  };
  explicit HeadNorm(const Config& config);
  void declare(DeclaredUnit& unit) { norm_.declare(unit); }

  struct Kept {
    Tensor x;  // the heads before, [rows * heads, head_dim]
    Norm::Kept statistics;
  };
  Kept keep(Arena& arena, int64_t rows, DType type) const;
  // In place in `rows`, [rows, row_width].
  void forward(Tensor rows, const Kept& kept, std::span<const Tensor> params, Arena& scratch,
               Stream& stream) const;
  // The gradient of what forward() gave becomes that of what it got, in place. Returns where the weight's
  // went; in the weights' part of a split backward add() takes it.
  Norm::Gradients backward(Tensor drows, const Kept& kept, const BackwardArgs& args) const;
  void add(const Norm::Gradients& kept, std::span<ParamGradient> grads, Stream& stream) const {
    norm_.add(kept, grads, stream);
  }

 private:
  // Moves values between heads in rows and heads side by side.
  void take(Tensor heads, Tensor rows, Stream& stream) const;
  void put(Tensor rows, Tensor heads, Stream& stream) const;

  Config c_;
  Norm norm_;
};

}  // namespace cleave::model
