// FP8 products in the linear layers of transformer blocks, and their scales.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace cleave::config {

// delayed: one scale per operand, from its largest magnitude in the last steps (arXiv 2209.05433,
// section 5), without an additional pass; row: one scale per row along the summed dimension.
enum class Fp8Scaling : uint8_t { off, delayed, row };
constexpr auto choice_names(Fp8Scaling) { return std::to_array<std::string_view>({"off", "delayed", "row"}); }

struct Fp8Rule {
  Fp8Scaling scaling = Fp8Scaling::off;
  int64_t history = 16;  // number of steps that `delayed` uses

  explicit operator bool() const { return scaling != Fp8Scaling::off; }
};

}  // namespace cleave::config
