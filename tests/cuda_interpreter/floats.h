// 16-bit and 8-bit floating-point numbers as bits.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace interpreter {

inline float from_bf16(uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }
inline float from_fp16(uint16_t x) { return _cvtsh_ss(x); }

// Rounds to nearest, ties to even; returns the NaN of CUDA's conversions for a NaN.
inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return uint16_t((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}
inline uint16_t to_fp16(float x) {
  return std::isnan(x) ? uint16_t(0x7fff) : uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}

// E4M3 and E5M2: values of the codes 0 to 0x7e in order. Codes of E5M2 after the last number are
// not numbers.
struct SmallFloats {
  int mantissa, bias, last;  // bits, of the exponent, the code of the largest number
  std::array<double, 127> numbers{};

  SmallFloats(int bits, int of_exponent, int largest) : mantissa(bits), bias(of_exponent), last(largest) {
    for (int code = 0; code <= last; ++code) {
      const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
      numbers[size_t(code)] = exponent == 0
                                  ? std::ldexp(fraction, 1 - bias - mantissa)
                                  : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    }
  }
  float from(uint8_t code) const {
    const int magnitude = code & 0x7f;
    const double x = magnitude <= last                      ? numbers[size_t(magnitude)]
                     : magnitude == last + 1 && last < 0x7e ? INFINITY
                                                            : NAN;
    return float(code & 0x80 ? -x : x);
  }
  // Rounds to nearest, ties to even; saturates to the largest number, and returns 0x7f for a NaN.
  uint8_t to(float x) const {
    if (std::isnan(x)) return 0x7f;
    const double* end = numbers.begin() + last + 1;
    const double* above = std::lower_bound(numbers.begin(), end, std::abs(double(x)));
    int code = above == end ? last : int(above - numbers.begin());
    if (above != end && code > 0) {
      const double up = *above - std::abs(double(x)), down = std::abs(double(x)) - *(above - 1);
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
    return uint8_t(code | (std::signbit(x) ? 0x80 : 0));
  }
};
inline const SmallFloats kE4M3(3, 7, 0x7e), kE5M2(2, 15, 0x7b);

}  // namespace interpreter
