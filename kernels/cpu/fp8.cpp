#include "kernels/fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/range.h"
#include "kernels/checks.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/team_loop.h"
#include "kernels/launched.h"
#include "kernels/matmul.h"

namespace cleave::kernels {
namespace {

constexpr int64_t kMostHistory = 1024;

void check_codes(const char* op, const char* name, const Tensor& codes) {
  CHECK(is_fp8(codes.dtype()), "{}: {} must be fp8_e4m3 or fp8_e5m2, got {}", op, name,
        name_of(codes.dtype()));
  Operand(op, name, codes).rank(2);
  CHECK(codes.dim(1) % kFp8Terms == 0, "{}: {} has {} terms (expected a multiple of {})", op, name,
        codes.dim(1), kFp8Terms);
}

}  // namespace

void ToFp8::check() const {
  check_codes("ToFp8", "codes", codes);
  Operand("ToFp8", "x", x).is_float().rank(2).no_overlap_with("codes", codes);
  const int64_t rows = x.dim(transposed ? 1 : 0), terms = x.dim(transposed ? 0 : 1);
  CHECK(codes.dim(0) == rows && codes.dim(1) == round_up(terms, kFp8Terms),
        "ToFp8: codes are {} for {} rows of {} elements", text_of(codes.shape()), rows, terms);
  Operand("ToFp8", "scales", scales).is(DType::fp32).numel(history.defined() ? 1 : rows);
  if (seen.defined()) Operand("ToFp8", "seen", seen).is(DType::fp32).numel(1);
  if (!history.defined()) return;
  Operand("ToFp8", "history", history).is(DType::fp32);
  CHECK(history.numel() <= kMostHistory, "ToFp8: a history of {}; at most {}", history.numel(), kMostHistory);
}
CLEAVE_LAUNCH(ToFp8)

void Fp8Matmul::check() const {
  check_codes("Fp8Matmul", "a", a);
  check_codes("Fp8Matmul", "b", b);
  Operand("Fp8Matmul", "c", c)
      .is_float()
      .has({a.dim(0), b.dim(0)})
      .no_overlap_with("a", a)
      .no_overlap_with("b", b);
  CHECK(a.dim(1) == b.dim(1), "Fp8Matmul: sums of {} and of {} terms", a.dim(1), b.dim(1));
  CHECK(a.dtype() == DType::fp8_e4m3 || b.dtype() == DType::fp8_e4m3, "Fp8Matmul: both operands are E5M2");
  const bool of_rows = a_scales.numel() != 1 || b_scales.numel() != 1;
  Operand("Fp8Matmul", "a_scales", a_scales).is(DType::fp32).numel(of_rows ? a.dim(0) : 1);
  Operand("Fp8Matmul", "b_scales", b_scales).is(DType::fp32).numel(of_rows ? b.dim(0) : 1);
  if (!bias.defined()) return;
  Operand("Fp8Matmul", "bias", bias).is_float().numel(b.dim(0));
  CHECK(!accumulate, "Fp8Matmul: a bias and a sum");
}
CLEAVE_LAUNCH(Fp8Matmul)

void PushFp8History::check() const {
  Operand("PushFp8History", "history", history).is(DType::fp32).rank(2).no_overlap_with("seen", seen);
  Operand("PushFp8History", "seen", seen).is(DType::fp32).has(history.shape());
}
CLEAVE_LAUNCH(PushFp8History)

namespace cpu {
namespace {

constexpr int64_t kAloneNumel = 1 << 15;  // elements; fewer run on one thread
constexpr int64_t kRows = 64;             // of codes at a time

// View of x as rows along the summed dim, for both layouts.
template <class T>
struct Rows {
  const T* x;
  int64_t rows, terms;
  bool transposed;

  // Calls visit(row, term, value) for some rows, in memory order.
  template <class Visit>
  void each(Range some, const Visit& visit) const {
    if (transposed) {
      for (int64_t t = 0; t < terms; ++t)
        for (int64_t r = some.begin; r < some.end; ++r) visit(r, t, to_float(x[t * rows + r]));
    } else {
      for (int64_t r = some.begin; r < some.end; ++r)
        for (int64_t t = 0; t < terms; ++t) visit(r, t, to_float(x[r * terms + t]));
    }
  }
};

template <class Visit>
void each_of(const ToFp8& op, const Visit& visit) {
  const int64_t rows = op.codes.dim(0), terms = op.x.dim(op.transposed ? 0 : 1);
  with_float(op.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    visit(Rows<T>{op.x.as<T>(), rows, terms, op.transposed});
  });
}

// Computes the largest magnitude of each of some rows.
void measure(const ToFp8& op, Range some, float* largest) {
  each_of(op, [&](const auto& x) {
    x.each(some, [&](int64_t r, int64_t, float value) {
      float& most = largest[r - some.begin];
      most = std::max(most, std::fabs(value));  // keeps the first value if the second is NaN
    });
  });
}

// Encodes some rows. Scales are for `largest`: per row, or with a history for all rows. Returns the largest
// magnitude of the rows.
float encode(const ToFp8& op, Range some, const float* largest) {
  const Fp8Format format = fp8_format(op.codes.dtype());
  auto* codes = static_cast<uint8_t*>(op.codes.raw());
  auto* scales = op.scales.as<float>();
  const int64_t stride = op.codes.dim(1), of_all = op.history.defined();
  float factors[kRows], most = 0;
  for (int64_t r = some.begin; r < some.end; ++r) {
    const float scale = fp8_scale(largest[of_all ? 0 : r - some.begin], format);
    factors[r - some.begin] = 1 / scale;  // exact, a power of two
    if (!of_all || r == 0) scales[of_all ? 0 : r] = scale;
  }
  each_of(op, [&](const auto& x) {
    x.each(some, [&](int64_t r, int64_t t, float value) {
      most = std::max(most, std::fabs(value));  // ignores NaN
      codes[r * stride + t] = to_fp8(value * factors[r - some.begin], format);
    });
    for (int64_t r = some.begin; r < some.end; ++r)
      std::fill(codes + r * stride + x.terms, codes + (r + 1) * stride, uint8_t{0});
  });
  return most;
}

// The operand's elements as bf16, which is exact.
Tensor decoded(const Tensor& codes, const Tensor& scales, void* memory) {
  const Tensor out(memory, DType::bf16, codes.shape(), MemoryKind::host);
  const auto& values = fp8_values(codes.dtype());
  const auto* from = static_cast<const uint8_t*>(codes.raw());
  const float* scale = scales.as<float>();
  auto* to = static_cast<bf16*>(memory);
  const int64_t terms = codes.dim(1), step = scales.numel() == 1 ? 0 : 1;
  team_loop(codes.dim(0), codes.numel() > kAloneNumel, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t t = r * terms; t < (r + 1) * terms; ++t)
        to[t] = {uint16_t(std::bit_cast<uint32_t>(values[from[t]] * scale[r * step]) >> 16)};
  });
  return out;
}

}  // namespace

void run(const ToFp8& op) {
  const int64_t rows = op.codes.dim(0), blocks = ceil_div(rows, kRows);
  float of_history = 0;
  if (op.history.defined())
    for (const float magnitude : op.history.span<float>())
      of_history = std::max(of_history, magnitude * op.unit);
  std::vector<float> seen(size_t(blocks), 0.0f);
  team_loop(blocks, op.x.numel() > kAloneNumel, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Range some{b * kRows, std::min(rows, (b + 1) * kRows)};
      float largest[kRows] = {};
      if (!op.history.defined()) measure(op, some, largest);
      seen[size_t(b)] = encode(op, some, op.history.defined() ? &of_history : largest);
    }
  });
  if (!op.seen.defined() || seen.empty()) return;
  float& most = op.seen.as<float>()[0];
  most = std::max(most, *std::max_element(seen.begin(), seen.end()) / op.unit);
}

void run(const Fp8Matmul& op) {
  const Scratch memory((op.a.numel() + op.b.numel()) * int64_t(sizeof(bf16)));
  auto* second = static_cast<bf16*>(memory.data()) + op.a.numel();
  run(Matmul{.c = op.c,
             .a = decoded(op.a, op.a_scales, memory.data()),
             .b = decoded(op.b, op.b_scales, second),
             .bias = op.bias,
             .transpose_b = true,
             .accumulate = op.accumulate});
}

void run(const PushFp8History& op) {
  const int64_t steps = op.history.dim(1);
  for (int64_t r = 0; r < op.history.dim(0); ++r) {
    float* row = op.history.as<float>() + r * steps;
    const float newest = op.seen.as<float>()[r * steps];
    if (newest < 0) continue;
    std::copy_backward(row, row + steps - 1, row + steps);
    row[0] = newest;
  }
}

}  // namespace cpu
}  // namespace cleave::kernels
