#include "kernels/matmul.h"

#include <cstring>
#include <optional>

#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/scratch.h"

namespace cleave::cpu {
namespace {

// An operand as the product wants it: itself, or a copy in fp32.
class AsFloat {
 public:
  explicit AsFloat(const Tensor& x) : data_(x.raw()) {
    if (!x.defined() || x.dtype() == DType::fp32) return;
    copy_.emplace(x.numel() * 4);
    data_ = copy_->data();
    cast({.y = {copy_->data(), DType::fp32}, .x = vec(x), .dy = {}, .numel = x.numel()});
  }
  const void* data() const { return data_; }

 private:
  std::optional<Scratch> copy_;
  const void* data_;
};

// Without terms a product is zero.
void run_empty(const Matmul& op) {
  if (op.accumulate || op.c.numel() == 0) return;
  const Scratch zeros(op.c.numel() * 4);
  std::memset(zeros.data(), 0, size_t(op.c.numel()) * 4);
  add_bias({vec(op.c), zeros.floats(), vec(op.bias), op.m(), op.n(), false});
}

}  // namespace

void run(const Matmul& op) {
  if (op.m() == 0 || op.n() == 0 || op.k() == 0) return run_empty(op);
  const bool native = op.a.dtype() == DType::bf16 && op.b.dtype() == DType::bf16 && onednn_native_bf16();
  Gemm gemm{op.c.raw(), op.a.raw(), op.b.raw(), nullptr,        DType::fp32,    op.a.dtype(), op.b.dtype(),
            op.m(),     op.n(),     op.k(),     op.transpose_a, op.transpose_b, op.accumulate};
  std::optional<AsFloat> a, b;
  if (!native) {
    a.emplace(op.a), b.emplace(op.b);
    gemm.a = a->data(), gemm.b = b->data();
    gemm.a_type = gemm.b_type = DType::fp32;
  }
  const AsFloat bias(op.bias);
  if (op.c.dtype() == DType::fp32) {
    gemm.bias = static_cast<const float*>(bias.data());
    return onednn_gemm(gemm);
  }
  const Scratch sums(op.c.numel() * 4);
  gemm.c = sums.data(), gemm.accumulate = false;
  onednn_gemm(gemm);
  add_bias({vec(op.c), sums.floats(), vec(op.bias), op.m(), op.n(), op.accumulate});
}

void run(const BiasGradient& op) {
  bias_grad({vec(op.db), vec(op.dy), op.dy.dim(0), op.dy.dim(1), op.accumulate});
}

}  // namespace cleave::cpu
