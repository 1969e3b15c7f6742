// 8-bit floats ("FP8 Formats for Deep Learning", arXiv 2209.05433). E4M3: 4 exponent bits, 3 mantissa bits,
// maximum 448, no infinity. E5M2: 5 exponent bits, 2 mantissa bits, maximum 57,344. Storage types like the
// 16-bit floats (device/dtype.h).
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "device/dtype.h"

namespace cleave {

// Parameters of a format.
struct Fp8Format {
  int mantissa, bias;  // mantissa bits, exponent of 1.0
  float largest;
  bool has_infinity;  // codes with the largest exponent are infinity or NaN

  // Exponent of the largest power of two, relative to 1.0.
  constexpr int top() const {
    return has_infinity ? (1 << (7 - mantissa)) - 2 - bias : (1 << (7 - mantissa)) - 1 - bias;
  }
};
inline constexpr Fp8Format kE4M3{3, 7, 448, false}, kE5M2{2, 15, 57344, true};
inline constexpr uint8_t kFp8NaN = 0x7f;

constexpr bool is_fp8(DType t) { return t == DType::fp8_e4m3 || t == DType::fp8_e5m2; }
constexpr const Fp8Format& fp8_format(DType t) { return t == DType::fp8_e5m2 ? kE5M2 : kE4M3; }

// Value of every code; also exact in bf16.
constexpr std::array<float, 256> fp8_values(const Fp8Format& f) {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int magnitude = code & 0x7f, exponent = magnitude >> f.mantissa,
              fraction = magnitude & ((1 << f.mantissa) - 1);
    const bool last = exponent == (1 << (7 - f.mantissa)) - 1;
    float value = 0;
    if (f.has_infinity && last)
      value =
          fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    else if (!f.has_infinity && magnitude == kFp8NaN)
      value = std::numeric_limits<float>::quiet_NaN();
    else if (exponent == 0)
      value = float(fraction) * std::bit_cast<float>(uint32_t(127 + 1 - f.bias - f.mantissa) << 23);
    else
      value = std::bit_cast<float>(uint32_t(exponent - f.bias + 127) << 23 | uint32_t(fraction)
                                                                                 << (23 - f.mantissa));
    values[size_t(code)] = code & 0x80 ? -value : value;
  }
  return values;
}
inline constexpr std::array<float, 256> kE4M3Values = fp8_values(kE4M3), kE5M2Values = fp8_values(kE5M2);
constexpr const std::array<float, 256>& fp8_values(DType t) {
  return t == DType::fp8_e5m2 ? kE5M2Values : kE4M3Values;
}

// Returns the nearest code, ties to even. Saturates finite values. Infinity and NaN become NaN, so an
// overflow stays visible.
inline uint8_t to_fp8(float x, const Fp8Format& f) {
  const uint32_t word = std::bit_cast<uint32_t>(x), sign = word >> 24 & 0x80u;
  const float magnitude = std::min(std::fabs(x), f.largest);
  // For subnormal results: adding a number with an ulp of the smallest step rounds to multiples of this step.
  const float coarse = std::bit_cast<float>(uint32_t(127 + 23 + 1 - f.bias - f.mantissa) << 23);
  const uint32_t small = std::bit_cast<uint32_t>(magnitude + coarse) - std::bit_cast<uint32_t>(coarse);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude), shift = uint32_t(23 - f.mantissa);
  const uint32_t rounded = (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1u)) >> shift;
  const uint32_t normal = rounded - (uint32_t(127 - f.bias) << f.mantissa);
  const float smallest = std::bit_cast<float>(uint32_t(127 + 1 - f.bias) << 23);
  const uint32_t code = magnitude < smallest ? small : normal;
  return uint8_t((word & 0x7fffffffu) >= 0x7f800000u ? kFp8NaN : code | sign);
}

// Returns a power of two s so that `largest` / s has the exponent below the format's maximum; values up
// to 1.75 times as large remain representable. Clamped to [2^-100, 2^100], so that scaled elements are normal
// numbers of bf16.
inline float fp8_scale(float largest, const Fp8Format& f) {
  const int exponent = int(std::bit_cast<uint32_t>(largest) >> 23 & 0xff) - 127 - (f.top() - 1);
  return std::bit_cast<float>(uint32_t(std::clamp(exponent, -100, 100) + 127) << 23);
}

}  // namespace cleave
