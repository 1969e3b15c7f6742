// RMS norm of each head among the columns of rows with several kinds of heads, as for queries and keys in
// Qwen3 (arXiv 2505.09388).
#pragma once
#include "model/norm.h"

namespace cleave::model {

class HeadNorm {
 public:
  struct Config {
    std::string name;  // parameter name without .weight, [head_dim]
    int64_t head_dim = 1, heads = 1;
    int64_t first_column = 0, row_width = 1;  // position of the heads in a row
    float eps = 1e-6f;
    float offset = 0;      // see Norm
    bool partial = false;  // ranks of a tensor axis normalize different heads with the same weight
  };
  explicit HeadNorm(const Config& config);
  void declare(DeclaredUnit& unit) { norm_.declare(unit); }

  struct Kept {
    Tensor x;  // heads before the norm, [rows * heads, head_dim]
    Norm::Kept statistics;
  };
  Kept keep(Arena& arena, int64_t rows, DType type) const;
  // Normalizes in place in `rows`, [rows, row_width].
  void forward(Tensor rows, const Kept& kept, std::span<const Tensor> params, Arena& scratch,
               Stream& stream) const;
  // Replaces the gradient of forward's output by that of its input, in place. Returns the destination of the
  // weight's gradient; in the weight part of a split backward, add() takes it.
  Norm::Gradients backward(Tensor drows, const Kept& kept, const BackwardArgs& args) const;
  void add(const Norm::Gradients& kept, std::span<ParamGradient> grads, Stream& stream) const {
    norm_.add(kept, grads, stream);
  }

 private:
  // Copies between heads inside rows and contiguous heads.
  void take(Tensor heads, Tensor rows, Stream& stream) const;
  void put(Tensor rows, Tensor heads, Stream& stream) const;

  Config c_;
  Norm norm_;
};

}  // namespace cleave::model
