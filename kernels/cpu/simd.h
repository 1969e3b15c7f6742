// Sixteen floats as one value on every instruction set: one AVX-512 register, or a pair of AVX2 registers.
// The bodies in isa/ are written once and compiled twice; lanes and order of operations are equal, so both
// give the same bits. Everything here has internal linkage and is always inlined: a body compiled for the
// newer instruction set must not emit a shared inline function that the linker could select for the whole
// program.
#pragma once
#include <immintrin.h>

#include <type_traits>

#include "device/dtype.h"

#ifndef CLEAVE_ISA
#error "include only from the sources in isa/, which are compiled once per instruction set"
#endif
#if defined(CLEAVE_ISA_v4) != defined(__AVX512F__)
#error "the compiler flags are not those of the instruction set"
#endif
#define CLEAVE_INLINE [[gnu::always_inline]] static inline
#define CLEAVE_MEMBER [[gnu::always_inline]] static inline

namespace cleave::kernels::cpu::CLEAVE_ISA {

#ifdef __AVX512F__
struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};
struct M16 {
  __mmask16 v;
};
#define CLEAVE_UNARY(name, R, A, expr512, expr256) \
  CLEAVE_INLINE R name(A a) { return {expr512}; }
#define CLEAVE_BINARY(name, R, A, B, expr512, expr256) \
  CLEAVE_INLINE R name(A a, B b) { return {expr512}; }
#define CLEAVE_TERNARY(name, R, A, B, C, expr512, expr256) \
  CLEAVE_INLINE R name(A a, B b, C c) { return {expr512}; }
#define X(a) a.v
using S16 = F16;
#else
struct F16 {
  __m256 lo, hi;
};
// One number in all lanes: one register for both halves.
struct S16 {
  __m256 v;
  [[gnu::always_inline]] operator F16() const { return {v, v}; }
};
struct I16 {
  __m256i lo, hi;
};
struct M16 {
  __m256 lo, hi;
};
// The operation on one half takes values only, so no pair lives in memory.
#define X(a) a
#define CLEAVE_UNARY(name, R, A, expr512, expr256)                                   \
  CLEAVE_INLINE R name(A x) {                                                        \
    const auto half = [](auto a) __attribute__((always_inline)) { return expr256; }; \
    return {half(x.lo), half(x.hi)};                                                 \
  }
#define CLEAVE_BINARY(name, R, A, B, expr512, expr256)                                       \
  CLEAVE_INLINE R name(A x, B y) {                                                           \
    const auto half = [](auto a, auto b) __attribute__((always_inline)) { return expr256; }; \
    return {half(x.lo, y.lo), half(x.hi, y.hi)};                                             \
  }
#define CLEAVE_TERNARY(name, R, A, B, C, expr512, expr256)                                           \
  CLEAVE_INLINE R name(A x, B y, C z) {                                                              \
    const auto half = [](auto a, auto b, auto c) __attribute__((always_inline)) { return expr256; }; \
    return {half(x.lo, y.lo, z.lo), half(x.hi, y.hi, z.hi)};                                         \
  }
#endif

CLEAVE_BINARY(operator+, F16, F16, F16, _mm512_add_ps(X(a), X(b)), _mm256_add_ps(X(a), X(b)))
CLEAVE_BINARY(operator-, F16, F16, F16, _mm512_sub_ps(X(a), X(b)), _mm256_sub_ps(X(a), X(b)))
CLEAVE_BINARY(operator*, F16, F16, F16, _mm512_mul_ps(X(a), X(b)), _mm256_mul_ps(X(a), X(b)))
CLEAVE_BINARY(operator/, F16, F16, F16, _mm512_div_ps(X(a), X(b)), _mm256_div_ps(X(a), X(b)))
// max and min return b if either is NaN, like the instructions.
CLEAVE_BINARY(max, F16, F16, F16, _mm512_max_ps(X(a), X(b)), _mm256_max_ps(X(a), X(b)))
CLEAVE_BINARY(min, F16, F16, F16, _mm512_min_ps(X(a), X(b)), _mm256_min_ps(X(a), X(b)))
// a * b + c and c - a * b, rounded once.
CLEAVE_TERNARY(fma, F16, F16, F16, F16, _mm512_fmadd_ps(X(a), X(b), X(c)), _mm256_fmadd_ps(X(a), X(b), X(c)))
CLEAVE_TERNARY(fnma, F16, F16, F16, F16, _mm512_fnmadd_ps(X(a), X(b), X(c)),
               _mm256_fnmadd_ps(X(a), X(b), X(c)))
CLEAVE_UNARY(sqrt, F16, F16, _mm512_sqrt_ps(X(a)), _mm256_sqrt_ps(X(a)))
CLEAVE_UNARY(round_even, F16, F16, _mm512_roundscale_ps(X(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
             _mm256_round_ps(X(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
CLEAVE_BINARY(operator<, M16, F16, F16, _mm512_cmp_ps_mask(X(a), X(b), _CMP_LT_OQ),
              _mm256_cmp_ps(X(a), X(b), _CMP_LT_OQ))
CLEAVE_BINARY(operator>=, M16, F16, F16, _mm512_cmp_ps_mask(X(a), X(b), _CMP_GE_OQ),
              _mm256_cmp_ps(X(a), X(b), _CMP_GE_OQ))
// m ? a : b per lane.
CLEAVE_TERNARY(select_, F16, F16, F16, M16, _mm512_mask_blend_ps(X(c), X(b), X(a)),
               _mm256_blendv_ps(X(b), X(a), X(c)))
CLEAVE_INLINE F16 select(M16 m, F16 a, F16 b) { return select_(a, b, m); }

CLEAVE_BINARY(operator+, I16, I16, I16, _mm512_add_epi32(X(a), X(b)), _mm256_add_epi32(X(a), X(b)))
CLEAVE_BINARY(operator^, I16, I16, I16, _mm512_xor_si512(X(a), X(b)), _mm256_xor_si256(X(a), X(b)))
CLEAVE_BINARY(operator&, I16, I16, I16, _mm512_and_si512(X(a), X(b)), _mm256_and_si256(X(a), X(b)))
CLEAVE_UNARY(to_int, I16, F16, _mm512_cvtps_epi32(X(a)), _mm256_cvtps_epi32(X(a)))
CLEAVE_UNARY(to_float, F16, I16, _mm512_cvtepi32_ps(X(a)), _mm256_cvtepi32_ps(X(a)))
CLEAVE_UNARY(bits_of, I16, F16, _mm512_castps_si512(X(a)), _mm256_castps_si256(X(a)))
CLEAVE_UNARY(float_of, F16, I16, _mm512_castsi512_ps(X(a)), _mm256_castsi256_ps(X(a)))
// Interleave within groups of four lanes, like the instructions.
CLEAVE_BINARY(unpack_lo32, I16, I16, I16, _mm512_unpacklo_epi32(X(a), X(b)),
              _mm256_unpacklo_epi32(X(a), X(b)))
CLEAVE_BINARY(unpack_hi32, I16, I16, I16, _mm512_unpackhi_epi32(X(a), X(b)),
              _mm256_unpackhi_epi32(X(a), X(b)))
CLEAVE_BINARY(unpack_lo64, I16, I16, I16, _mm512_unpacklo_epi64(X(a), X(b)),
              _mm256_unpacklo_epi64(X(a), X(b)))
CLEAVE_BINARY(unpack_hi64, I16, I16, I16, _mm512_unpackhi_epi64(X(a), X(b)),
              _mm256_unpackhi_epi64(X(a), X(b)))
// 64-bit products of the even lanes; moves of odd lanes to even lanes and back.
CLEAVE_BINARY(mul_even, I16, I16, I16, _mm512_mul_epu32(X(a), X(b)), _mm256_mul_epu32(X(a), X(b)))
CLEAVE_UNARY(odd_to_even, I16, I16, _mm512_srli_epi64(X(a), 32), _mm256_srli_epi64(X(a), 32))
CLEAVE_UNARY(even_to_odd, I16, I16, _mm512_slli_epi64(X(a), 32), _mm256_slli_epi64(X(a), 32))
CLEAVE_BINARY(even_odd, I16, I16, I16, _mm512_mask_blend_epi32(0xaaaa, X(a), X(b)),
              _mm256_blend_epi32(X(a), X(b), 0xaa))
template <int kBits>
CLEAVE_UNARY(shift_left, I16, I16, _mm512_slli_epi32(X(a), kBits), _mm256_slli_epi32(X(a), kBits))
template <int kBits>
CLEAVE_UNARY(shift_right, I16, I16, _mm512_srli_epi32(X(a), kBits), _mm256_srli_epi32(X(a), kBits))
template <int kBits>
CLEAVE_UNARY(shift_right_signed, I16, I16, _mm512_srai_epi32(X(a), kBits), _mm256_srai_epi32(X(a), kBits))
#ifdef __AVX512F__
CLEAVE_INLINE S16 splat(float x) {
  return {_mm512_set1_ps(x)};
}
CLEAVE_INLINE I16 splat(int x) { return {_mm512_set1_epi32(x)}; }
CLEAVE_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
CLEAVE_INLINE I16 load(const int* p) { return {_mm512_loadu_si512(p)}; }
CLEAVE_INLINE F16 load(const fp16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
CLEAVE_INLINE F16 load(const bf16* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
CLEAVE_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
CLEAVE_INLINE void store(int* p, I16 a) { _mm512_storeu_si512(p, a.v); }
CLEAVE_INLINE void store(fp16* p, F16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
CLEAVE_INLINE void store(bf16* p, F16 a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
}
CLEAVE_INLINE __m256 low_half(F16 a) { return _mm512_castps512_ps256(a.v); }
CLEAVE_INLINE __m256 high_half(F16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
CLEAVE_INLINE S16 splat(float x) {
  return {_mm256_set1_ps(x)};
}
CLEAVE_INLINE I16 splat(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
CLEAVE_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CLEAVE_INLINE I16 load(const int* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
CLEAVE_INLINE F16 load(const fp16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
CLEAVE_INLINE __m256 load8(const bf16* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
CLEAVE_INLINE F16 load(const bf16* p) { return {load8(p), load8(p + 8)}; }
CLEAVE_INLINE void store(float* p, F16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
CLEAVE_INLINE void store(int* p, I16 a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}
CLEAVE_INLINE void store(fp16* p, F16 a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
CLEAVE_INLINE __m256i round_to_bf16(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i r =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
CLEAVE_INLINE void store(bf16* p, F16 a) {
  const __m256i packed = _mm256_packus_epi32(round_to_bf16(a.lo), round_to_bf16(a.hi));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
CLEAVE_INLINE __m256 low_half(F16 a) { return a.lo; }
CLEAVE_INLINE __m256 high_half(F16 a) { return a.hi; }
#endif
#undef X

CLEAVE_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
CLEAVE_INLINE S16 zero() { return splat(0.0f); }
CLEAVE_INLINE F16 abs(F16 a) { return float_of(bits_of(a) & splat(0x7fffffff)); }
CLEAVE_INLINE F16 negate(F16 a) { return float_of(bits_of(a) ^ splat(int(0x80000000u))); }
CLEAVE_INLINE F16 fma(F16 a, float b, F16 c) { return fma(a, splat(b), c); }
CLEAVE_INLINE F16 operator*(F16 a, float b) { return a * splat(b); }
CLEAVE_INLINE F16 lane_index() {
  const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(lanes);
}

// Number of lanes of an access. Lanes beyond a Part load as zero and are not stored.
struct All {};
struct Part {
  int lanes;
};
template <class T>
CLEAVE_INLINE F16 load(const T* p, All) {
  return load(p);
}
template <class T>
CLEAVE_INLINE void store(T* p, F16 a, All) {
  store(p, a);
}
template <class T>
CLEAVE_INLINE F16 load(const T* p, Part part) {
  T lanes[16] = {};
  __builtin_memcpy(lanes, p, size_t(part.lanes) * sizeof(T));
  return load(lanes);
}
template <class T>
CLEAVE_INLINE void store(T* p, F16 a, Part part) {
  T lanes[16];
  store(lanes, a);
  __builtin_memcpy(p, lanes, size_t(part.lanes) * sizeof(T));
}

// Prefetches the data 512 elements after i in a loop over several large arrays. With more arrays than the
// hardware prefetcher follows, this keeps memory busy during the computation. Harmless beyond the end of an
// array.
template <class... T>
CLEAVE_INLINE void prefetch(int64_t i, T*... arrays) {
  (__builtin_prefetch(arrays + i + 512, !std::is_const_v<T>), ...);
}

// a with the lanes beyond a Part replaced by `other`.
CLEAVE_INLINE F16 keep(F16 a, All, float = 0) { return a; }
CLEAVE_INLINE F16 keep(F16 a, Part part, float other = 0) {
  return select(lane_index() < splat(float(part.lanes)), a, splat(other));
}

// Calls body(i, All or Part) for every vector of [begin, end).
template <class Body>
CLEAVE_INLINE void for_vectors(int64_t begin, int64_t end, Body&& body) {
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) body(i, All{});
  if (i < end) body(i, Part{int(end - i)});
}

// Calls body(T{}) with the C++ type of a training float type; the caller checks the type.
template <class Body>
CLEAVE_INLINE void with_type(DType type, Body&& body) {
  if (type == DType::fp32)
    body(float{});
  else if (type == DType::bf16)
    body(bf16{});
  else
    body(fp16{});
}

// Sum and maximum of all lanes, always by the same tree: lane i with i + 8, then + 4, + 2, + 1.
CLEAVE_INLINE float sum_lanes(F16 a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
CLEAVE_INLINE float max_lanes(F16 a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
