#include "model/fp8.h"

#include <cmath>

#include "kernels/fp8.h"
#include "model/linear.h"

namespace cleave::model {
namespace {

using kernels::kFp8Terms;

Fp8Codes take(Arena& scratch, DType type, int64_t rows, int64_t terms, const Fp8Scale& scale) {
  return {scratch.take(type, {rows, round_up(terms, kFp8Terms)}),
          scratch.take(DType::fp32, {scale.history.defined() ? 1 : rows})};
}

void encode(const Fp8Codes& to, Tensor x, bool transposed, const Fp8Scale& scale, Stream& stream) {
  kernels::launch(kernels::ToFp8{.codes = to.codes,
                                 .scales = to.scales,
                                 .seen = scale.seen,
                                 .x = x,
                                 .history = scale.history,
                                 .unit = scale.unit,
                                 .transposed = transposed},
                  stream);
}

// Returns the power of two at or below a positive number, and 1 for others.
float power_below(float x) { return x > 0 && std::isfinite(x) ? std::exp2(std::floor(std::log2(x))) : 1; }

}  // namespace

void Fp8Product::multiply(Tensor y, Tensor x, Tensor bias, Stream& stream) const {
  const Range rows{0, x.dim(0)};
  const Fp8Codes mine{rows_of(room.codes, rows),
                      scale.history.defined() ? room.scales : rows_of(room.scales, rows)};
  encode(mine, x, false, scale, stream);
  kernels::launch(kernels::Fp8Matmul{.c = y,
                                     .a = mine.codes,
                                     .b = weight.codes,
                                     .a_scales = mine.scales,
                                     .b_scales = weight.scales,
                                     .bias = bias},
                  stream);
}

Fp8Scale Fp8Dense::scale_of(Whose whose, std::span<const StateViews> states, float of_gradients) const {
  constexpr float kInputs = 16;
  const float unit = whose == Whose::input ? kInputs : whose == Whose::weight ? 1 : power_below(of_gradients);
  if (states.empty()) return {.unit = unit};
  const int64_t row = place_ * kRows + int64_t(whose);
  const StateViews& all = states.front();
  const auto of = [&](const Tensor& t) { return rows_of(t, {row, row + 1}); };
  Fp8Scale scale{.history = of(all.lasting), .unit = unit};
  if (all.seen.defined()) scale.seen = rows_of(of(all.seen).view({all.seen.dim(1)}), {0, 1});
  return scale;
}

Fp8Product Fp8Dense::bind(const ForwardArgs& a, Tensor weight, int64_t rows) const {
  const Fp8Scale of_weight = scale_of(Whose::weight, a.states), of_input = scale_of(Whose::input, a.states);
  const Fp8Codes codes = take(a.scratch, DType::fp8_e4m3, out_, in_, of_weight);
  encode(codes, weight, false, of_weight, a.stream);
  return {codes, take(a.scratch, DType::fp8_e4m3, rows, in_, of_input), of_input};
}

Fp8Product Fp8Dense::bind(const BackwardArgs& a, Tensor weight, int64_t rows) const {
  Fp8Scale of_weight = scale_of(Whose::weight, a.states);
  of_weight.seen = {};  // recorded by the forward
  const Fp8Scale of_gradient = scale_of(Whose::gradient, a.states, a.scale);
  const Fp8Codes codes = take(a.scratch, DType::fp8_e4m3, in_, out_, of_weight);
  encode(codes, weight, true, of_weight, a.stream);
  return {codes, take(a.scratch, DType::fp8_e5m2, rows, out_, of_gradient), of_gradient};
}

void Fp8Dense::add_weight(ParamGradient& dweight, Tensor dy, Tensor x, const BackwardArgs& a) const {
  const int64_t rows = dy.numel() / out_, mark = a.scratch.mark();
  Fp8Scale of_input = scale_of(Whose::input, a.states),
           of_gradient = scale_of(Whose::gradient, a.states, a.scale);
  of_input.seen = of_gradient.seen = {};  // recorded by the forward, and with the input's gradient
  const Fp8Codes left = take(a.scratch, DType::fp8_e5m2, out_, rows, of_gradient),
                 right = take(a.scratch, DType::fp8_e4m3, in_, rows, of_input);
  encode(left, dy.view({rows, out_}), true, of_gradient, a.stream);
  encode(right, x.view({rows, in_}), true, of_input, a.stream);
  kernels::launch(kernels::Fp8Matmul{.c = dweight.tensor.view({out_, in_}),
                                     .a = left.codes,
                                     .b = right.codes,
                                     .a_scales = left.scales,
                                     .b_scales = right.scales,
                                     .accumulate = dweight.accumulate()},
                  a.stream);
  a.scratch.release(mark);
}

LayerState fp8_state(const std::string& block, int64_t layers, const config::Fp8Rule& rule) {
  return {.name = block + ".fp8",
          .shape = {layers * Fp8Dense::kRows, rule.history},
          .by = Reduction::max,
          .begin = 1,
          .sees_columns = true,
          .may_be_missing = true};
}

}  // namespace cleave::model
