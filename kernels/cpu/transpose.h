// Transposition in registers, for packing operands.
#pragma once
#include "kernels/cpu/simd.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Four rows of sixteen become sixteen groups of four at out[k * kStride].
template <int64_t kStride>
CLEAVE_INLINE void store_transposed(float* out, F16 r0, F16 r1, F16 r2, F16 r3) {
  const I16 a = unpack_lo32(bits_of(r0), bits_of(r1)), b = unpack_hi32(bits_of(r0), bits_of(r1));
  const I16 c = unpack_lo32(bits_of(r2), bits_of(r3)), d = unpack_hi32(bits_of(r2), bits_of(r3));
  const F16 k[4] = {float_of(unpack_lo64(a, c)), float_of(unpack_hi64(a, c)), float_of(unpack_lo64(b, d)),
                    float_of(unpack_hi64(b, d))};
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256 lo = low_half(k[j]), hi = high_half(k[j]);
    _mm_storeu_ps(out + j * kStride, _mm256_castps256_ps128(lo));
    _mm_storeu_ps(out + (4 + j) * kStride, _mm256_extractf128_ps(lo, 1));
    _mm_storeu_ps(out + (8 + j) * kStride, _mm256_castps256_ps128(hi));
    _mm_storeu_ps(out + (12 + j) * kStride, _mm256_extractf128_ps(hi, 1));
  }
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
