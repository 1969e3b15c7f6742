// Matrix products.
#pragma once
#include <algorithm>

#include "kernels/launch.h"

namespace cleave::kernels {

// c = op(a) @ op(b) [+ bias] [+ c]. Row major: c is [m, n], op(a) is [m, k], op(b) is [k, n]; transpose_x
// means that the operand is stored transposed. a, b: fp32, bf16 or fp16; c: any of them, rounded once from
// fp32 sums. bias [n], if defined, is added to every row (not together with accumulate). c must not overlap a
// or b. A linear layer with weight [out, in] is y = x @ w^T (transpose_b), dx = dy @ w, dw += dy^T @ x
// (transpose_a).
struct Matmul {
  Tensor c, a, b;
  Tensor bias = {};
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;  // add to c instead of overwriting it

  int64_t m() const { return c.dim(0); }
  int64_t n() const { return c.dim(1); }
  int64_t k() const { return a.dim(transpose_a ? 0 : 1); }
  void check() const;
  Traffic traffic() const { return accumulate ? Traffic{a, b, c, c} : Traffic{a, b, c}; }
  // Class of similar speed. 0: b transposed (forward), 1: none (input gradient), 2: a transposed (weight
  // gradient). Plus 3 if a side is too short to fill the blocks; plus 6 if, in addition, the matrix of the
  // other two sides exceeds the caches, as with the logits of a narrow model.
  int64_t variant() const {
    constexpr int64_t kShort = 256, kInCaches = int64_t{1} << 21;
    const int64_t turned = transpose_a ? 2 : transpose_b ? 0 : 1, shortest = std::min({m(), n(), k()});
    if (shortest > kShort) return turned;
    return turned + (m() * n() * k() <= shortest * kInCaches ? 3 : 6);
  }
  double flops() const { return 2.0 * double(m()) * double(n()) * double(k()); }
};
CLEAVE_KERNEL(Matmul)

// db[n] = (accumulate ? db : 0) + column sums of dy [rows, n], added in row order in fp32, in blocks of rows.
// The block size does not depend on the number of threads.
struct BiasGradient {
  Tensor db, dy;
  bool accumulate = false;
  void check() const;
  Traffic traffic() const { return {dy, db}; }
  Traffic least() const { return {db}; }
};
CLEAVE_KERNEL(BiasGradient)

}  // namespace cleave::kernels
