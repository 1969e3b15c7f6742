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

#ifdef __AVX512F__
// Transposes sixteen registers of sixteen pairs.
CLEAVE_INLINE void turn(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Group g of four lanes in r[4 q + c] holds column 4 g + c of rows 4 q to 4 q + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low02 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);  // groups 0 and 2 of quarters 0 and 1
    const __m512i low13 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    const __m512i high02 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i high13 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(low02, high02, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(low02, high02, 0xdd);
    t[4 + c] = _mm512_shuffle_i32x4(low13, high13, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(low13, high13, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}
#endif

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
