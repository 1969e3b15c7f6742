// Packs bf16 operands for vdpbf16ps: a pair of terms in place of each number, the earlier term in the lower
// half; an odd number of terms is padded with a zero.
#pragma once
#include "kernels/cpu/transpose.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

CLEAVE_INLINE __mmask16 first_lanes(int64_t n) {
  if (n >= 16) return 0xffff;
  return __mmask16((1 << (n > 0 ? n : 0)) - 1);
}

// Loads sixteen pairs of a row with `terms` remaining terms; zero beyond.
CLEAVE_INLINE __m512i pairs_of_row(const bf16* x, int64_t terms) {
  return _mm512_maskz_loadu_epi16(terms >= 32 ? 0xffffffffu : (1u << terms) - 1, x);
}

// For terms along the rows of x: out[pair * kWide + i] is a pair of row i; rows from `valid` on are zero.
// Groups of four rows may overlap.
template <int kWide>
CLEAVE_INLINE void pack_pairs_across(uint32_t* out, const bf16* x, int64_t stride, int64_t valid,
                                     int64_t terms) {
  for (int64_t k = 0; k < terms; k += 32, out += 16 * kWide) {
    const auto row = [=](int64_t i) __attribute__((always_inline)) {
      return F16{_mm512_castsi512_ps(i < valid ? pairs_of_row(x + i * stride + k, terms - k)
                                               : _mm512_setzero_si512())};
    };
    const int64_t pairs = (terms - k + 1) / 2;
    float beyond[16 * kWide];
    float* to = pairs >= 16 ? reinterpret_cast<float*>(out) : beyond;
    for (int g = 0; g < (kWide + 3) / 4; ++g) {
      const int i = 4 * g + 4 <= kWide ? 4 * g : kWide - 4;
      store_transposed<kWide>(to + i, row(i), row(i + 1), row(i + 2), row(i + 3));
    }
    if (pairs < 16) __builtin_memcpy(out, beyond, size_t(pairs) * kWide * 4);
  }
}

// For terms across the rows of x: out[pair * wide + i] is a pair of column i; columns from `valid` on are
// zero.
CLEAVE_INLINE void pack_pairs_along(uint32_t* out, const bf16* x, int64_t stride, int64_t valid,
                                    int64_t terms, int64_t wide) {
  for (int64_t k = 0; k < terms; k += 2, x += 2 * stride, out += wide)
    for (int64_t i = 0; i < wide; i += 16) {
      const __mmask16 columns = first_lanes(valid - i), both = k + 1 < terms ? columns : __mmask16(0);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(columns, x + i));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(both, x + stride + i));
      _mm512_mask_storeu_epi32(out + i, first_lanes(wide - i),
                               _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
