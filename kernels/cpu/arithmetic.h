// Arithmetics of products in vector registers. An arithmetic has
//   Element                          of packed operands: a number, or a pair of terms
//   Row                              16 elements in a register
//   row(const Element*)              loads a Row
//   step(Element a, Row b, F16 sum)  sum + a b per lane
//   elements(terms)                  number of elements for this number of terms
#pragma once
#include "kernels/cpu/simd.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

struct MultiplyAdd {
  using Element = float;
  using Row = F16;
  CLEAVE_MEMBER F16 row(const float* p) { return load(p); }
  CLEAVE_MEMBER F16 step(float a, F16 b, F16 sum) { return fma(splat(a), b, sum); }
  static constexpr int64_t elements(int64_t terms) { return terms; }
};

#ifdef __AVX512F__
// Pairs of bf16 terms, the earlier term in the lower half.
struct PairsOfTerms {
  using Element = uint32_t;
  using Row = __m512i;
  CLEAVE_MEMBER __m512i row(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static constexpr int64_t elements(int64_t terms) { return (terms + 1) / 2; }
};

#ifdef __AVX512BF16__
// Uses vdpbf16ps of AVX512_BF16.
struct Dot : PairsOfTerms {
  CLEAVE_MEMBER F16 step(uint32_t a, __m512i b, F16 sum) {
    return {_mm512_dpbf16_ps(sum.v, __m512bh(_mm512_set1_epi32(int(a))), __m512bh(b))};
  }
  CLEAVE_MEMBER __m256i rounded(F16 x) { return __m256i(_mm512_cvtneps_pbh(x.v)); }
};
#endif

// Uses fp32 multiply-adds, for CPUs without the instruction: the same packing, the same rounding except for
// subnormals, and equally accurate sums.
struct DotModel : PairsOfTerms {
  CLEAVE_MEMBER F16 step(uint32_t a, __m512i b, F16 sum) {
    const __m512i x = _mm512_set1_epi32(int(a)), upper = _mm512_set1_epi32(int(0xffff0000u));
    const F16 late = fma(number(_mm512_and_si512(x, upper)), number(_mm512_and_si512(b, upper)), sum);
    return fma(number(_mm512_slli_epi32(x, 16)), number(_mm512_slli_epi32(b, 16)), late);
  }
  CLEAVE_MEMBER __m256i rounded(F16 x) {
    bf16 lanes[16];
    store(lanes, x);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
  }

 private:
  CLEAVE_MEMBER F16 number(__m512i bits) { return {_mm512_castsi512_ps(bits)}; }
};
#endif

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
