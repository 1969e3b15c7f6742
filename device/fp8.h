// Floats of eight bits ("FP8 Formats for Deep Learning", arXiv 2209.05433): E4M3 with four bits of exponent
// and three of mantissa, up to 448, without an infinity; E5M2 with five and two, up to 57,344. Storage, as
// the 16-bit floats are (device/dtype.h).
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "device/dtype.h"

namespace cleave {

// What tells the two formats apart.
struct Fp8Format {
  int mantissa, bias;  // bits of the one, exponent of 1.0
  float largest;
  bool has_infinity;  // the codes of the largest exponent are no numbers

  // Of 1.0: the exponent of the largest power of two.
  constexpr int top() const {
    return has_infinity ? (1 << (7 - mantissa)) - 2 - bias : (1 << (7 - mantissa)) - 1 - bias;
  }
};
inline constexpr Fp8Format kE4M3{3, 7, 448, false}, kE5M2{2, 15, 57344, true};
inline constexpr uint8_t kFp8NaN = 0x7f;

constexpr bool is_fp8(DType t) { return t == DType::fp8_e4m3 || t == DType::fp8_e5m2; }
constexpr const Fp8Format& fp8_format(DType t) { return t == DType::fp8_e5m2 ? kE5M2 : kE4M3; }

// What every code stands for; exact in bf16, too.
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

// The nearest code, ties to even. What is larger than the largest number becomes it; what is not finite
// becomes a NaN, so that an overflow stays one.
inline uint8_t to_fp8(float x, const Fp8Format& f) {
  const uint32_t word = std::bit_cast<uint32_t>(x), sign = word >> 24 & 0x80u;
  const float magnitude = std::min(std::fabs(x), f.largest);
  // Below the normal numbers, adding a number whose last bit is the smallest step rounds to such steps.
  const float coarse = std::bit_cast<float>(uint32_t(127 + 23 + 1 - f.bias - f.mantissa) << 23);
  const uint32_t small = std::bit_cast<uint32_t>(magnitude + coarse) - std::bit_cast<uint32_t>(coarse);
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude), shift = uint32_t(23 - f.mantissa);
  const uint32_t rounded = (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1u)) >> shift;
  const uint32_t normal = rounded - (uint32_t(127 - f.bias) << f.mantissa);
  const float smallest = std::bit_cast<float>(uint32_t(127 + 1 - f.bias) << 23);
  const uint32_t code = magnitude < smallest ? small : normal;
  return uint8_t((word & 0x7fffffffu) >= 0x7f800000u ? kFp8NaN : code | sign);
}

// A power of two with which `largest`, over it, has the exponent below the format's top one: whatever is up
// to 1.75 times as large still has a code. Between 2^-100 and 2^100, so that elements stay normal numbers of
// bf16.
inline float fp8_scale(float largest, const Fp8Format& f) {
  const int exponent = int(std::bit_cast<uint32_t>(largest) >> 23 & 0xff) - 127 - (f.top() - 1);
  return std::bit_cast<float>(uint32_t(std::clamp(exponent, -100, 100) + 127) << 23);
}

}  // namespace cleave
