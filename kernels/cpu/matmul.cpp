#include "kernels/matmul.h"

#include <cstring>
#include <optional>

#include "core/range.h"
#include "device/team.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/scratch.h"

namespace cleave::kernels::cpu {
namespace {

// Sums of a 16-bit c are in fp32 for one part of c at a time: the rows that are packed at once, and as many
// whole column blocks as fit.
constexpr int64_t kSumRows = gemm_blocks::kChunkRows, kSumColumns = gemm_blocks::kColumnBlock;
constexpr int64_t kOwnSums = int64_t{4} << 20;
// The same for oneDNN, with blocks of whole rows: about as many sums as a cache holds.
constexpr int64_t kOnednnSums = int64_t{2} << 20, kLeastRows = 64;

// A small operand as fp32: the operand, or a converted copy.
class AsFloat {
 public:
  explicit AsFloat(const Tensor& x) : data_(static_cast<const float*>(x.raw())) {
    if (!x.defined() || x.dtype() == DType::fp32) return;
    copy_.emplace(x.numel() * 4);
    data_ = copy_->floats();
    cast({.y = {copy_->data(), DType::fp32}, .x = vec(x), .dy = {}, .numel = x.numel()});
  }
  const float* data() const { return data_; }

 private:
  std::optional<Scratch> copy_;
  const float* data_;
};

Vec element(const Tensor& x, int64_t i) {
  return {static_cast<std::byte*>(x.raw()) + i * size_of(x.dtype()), x.dtype()};
}
// Row or column `i` of the operand in the product's m or n dim.
Vec from(const Tensor& x, bool along_rows, int64_t i) { return element(x, along_rows ? i * x.dim(1) : i); }

GemmArgs args_of(const Matmul& op, const float* bias) {
  return {.c = static_cast<float*>(op.c.raw()),
          .rounded = {},
          .a = vec(op.a),
          .b = vec(op.b),
          .bias = bias,
          .c_stride = op.n(),
          .rounded_stride = 0,
          .a_stride = op.a.dim(1),
          .b_stride = op.b.dim(1),
          .m = op.m(),
          .n = op.n(),
          .k = op.k(),
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b,
          .accumulate = op.accumulate,
          .scratch = nullptr};
}

void run_gemm(GemmArgs args) {
  const Scratch packed(gemm_scratch(args.m, args.k, team_threads()) * 4);
  args.scratch = packed.floats();
  const bool in_bf16 = args.a.type == DType::bf16 && args.b.type == DType::bf16;
  switch (in_bf16 ? bf16_products().way : Bf16Way::as_fp32) {
    case Bf16Way::dots:
      return v4::gemm_dots(args);
    case Bf16Way::tiles:
      return v4::gemm_tiles(args);
    default:
      return gemm(args);
  }
}

// For few rows of a, nothing is packed, and complete sums are rounded.
void run_thin(const Matmul& op, GemmArgs args) {
  const Scratch sums(op.c.numel() * 4);
  args.c = sums.floats(), args.accumulate = false;
  run_gemm(args);
  round_rows({.y = vec(op.c),
              .x = sums.floats(),
              .y_stride = op.n(),
              .rows = op.m(),
              .width = op.n(),
              .accumulate = op.accumulate});
}

void run_rounded(const Matmul& op, const GemmArgs& whole) {
  const int64_t rows = std::min(kSumRows, op.m());
  const int64_t columns = std::max(kSumColumns, kOwnSums / rows / kSumColumns * kSumColumns);
  const Scratch sums(rows * std::min(columns, op.n()) * 4);
  for (int64_t n0 = 0; n0 < op.n(); n0 += columns)
    for (int64_t m0 = 0; m0 < op.m(); m0 += rows) {
      GemmArgs args = whole;
      args.m = std::min(rows, op.m() - m0), args.n = std::min(columns, op.n() - n0);
      args.c = sums.floats(), args.c_stride = args.n;
      args.rounded = element(op.c, m0 * op.n() + n0), args.rounded_stride = op.n();
      if (m0 > 0) args.a = from(op.a, !op.transpose_a, m0);
      args.b = from(op.b, op.transpose_b, n0);
      if (args.bias) args.bias += n0;
      run_gemm(args);
    }
}

// A product without terms is zero.
void run_empty(const Matmul& op, const float* bias) {
  if (op.accumulate || op.c.numel() == 0) return;
  const Scratch rows(op.c.numel() * 4);
  for (int64_t i = 0; i < op.m(); ++i)
    for (int64_t j = 0; j < op.n(); ++j) rows.floats()[i * op.n() + j] = bias ? bias[j] : 0.0f;
  round_rows({.y = vec(op.c),
              .x = rows.floats(),
              .y_stride = op.n(),
              .rows = op.m(),
              .width = op.n(),
              .accumulate = false});
}

void run_onednn(const Matmul& op, const float* bias) {
  OnednnGemm gemm = onednn_gemm_of(op);
  gemm.bias = bias;
  if (op.c.dtype() == DType::fp32 || (op.c.dtype() == DType::bf16 && !op.accumulate))
    return onednn_gemm(gemm);
  const int64_t rows = std::min(op.m(), std::max(kLeastRows, kOnednnSums / op.n() / kLeastRows * kLeastRows));
  const Scratch sums(rows * op.n() * 4);
  gemm.c = sums.data(), gemm.c_type = DType::fp32, gemm.accumulate = false;
  for (int64_t m0 = 0; m0 < op.m(); m0 += rows) {
    gemm.m = std::min(rows, op.m() - m0);
    gemm.a = from(op.a, !op.transpose_a, m0).data;
    onednn_gemm(gemm);
    round_rows({.y = element(op.c, m0 * op.n()),
                .x = sums.floats(),
                .y_stride = op.n(),
                .rows = gemm.m,
                .width = op.n(),
                .accumulate = op.accumulate});
  }
}

}  // namespace

OnednnGemm onednn_gemm_of(const Matmul& op) {
  return {.c = op.c.raw(),
          .a = op.a.raw(),
          .b = op.b.raw(),
          .bias = nullptr,
          .c_type = op.c.dtype(),
          .a_type = op.a.dtype(),
          .b_type = op.b.dtype(),
          .m = op.m(),
          .n = op.n(),
          .k = op.k(),
          .a_stride = op.a.dim(1),
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b,
          .accumulate = op.accumulate};
}

void run(const Matmul& op) {
  const AsFloat bias(op.bias);
  if (op.m() == 0 || op.n() == 0 || op.k() == 0) return run_empty(op, bias.data());
  // A few rows against rows of b are bound by reading b. The own product reads b once, without packing.
  const bool few = op.m() <= gemm_blocks::kThinRows && !op.transpose_a, thin = few && op.transpose_b;
  const Bf16Way way = op.a.dtype() == DType::bf16 && op.b.dtype() == DType::bf16 && !thin
                          ? bf16_products().way
                          : Bf16Way::as_fp32;
  if (way == Bf16Way::onednn) return run_onednn(op, bias.data());
  GemmArgs args = args_of(op, bias.data());
  std::optional<AsFloat> rows;  // copying a few rows avoids packing b
  if (few && way == Bf16Way::as_fp32) {
    rows.emplace(op.a);
    args.a = {const_cast<float*>(rows->data()), DType::fp32};
  }
  if (op.c.dtype() == DType::fp32) return run_gemm(args);
  if (thin) return run_thin(op, args);
  run_rounded(op, args);
}

void run(const BiasGradient& op) {
  bias_grad({vec(op.db), vec(op.dy), op.dy.dim(0), op.dy.dim(1), op.accumulate});
}

}  // namespace cleave::kernels::cpu
