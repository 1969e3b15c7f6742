// 16-bit floating-point numbers as bits.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace interpreter {

inline float from_bf16(uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }
inline float from_fp16(uint16_t x) { return _cvtsh_ss(x); }

// To nearest, ties to even; a NaN becomes the one that CUDA's conversions give.
inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return uint16_t((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded);
}
inline uint16_t to_fp16(float x) {
  return std::isnan(x) ? uint16_t(0x7fff) : uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace interpreter
