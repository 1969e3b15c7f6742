// Whether the linear layers of a transformer's blocks multiply floats of eight bits, and by what these are
// scaled.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace cleave::config {

// delayed: each operand by its largest magnitude in the last steps (arXiv 2209.05433, section 5), which costs
// no pass of its own; row: every row along the sums by its own.
enum class Fp8Scaling : uint8_t { off, delayed, row };
constexpr auto choice_names(Fp8Scaling) { return std::to_array<std::string_view>({"off", "delayed", "row"}); }

struct Fp8Rule {
  Fp8Scaling scaling = Fp8Scaling::off;
  int64_t history = 16;  // steps that `delayed` looks back

  explicit operator bool() const { return scaling != Fp8Scaling::off; }
};

}  // namespace cleave::config
