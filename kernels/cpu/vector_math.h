// Exponential, logarithm, normal distribution and Philox on sixteen lanes. The polynomials are Chebyshev
// fits; the stated errors were measured against double precision over the whole range.
#pragma once
#include "kernels/cpu/simd.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// x * 2^n for integral n in [-252, 254]. Uses two factors, because 2^128 exceeds the exponent field.
CLEAVE_INLINE F16 scale_by_power(F16 x, F16 n) {
#ifdef __AVX512F__
  return {_mm512_scalef_ps(x.v, n.v)};
#else
  const I16 whole = to_int(n), first = shift_right_signed<1>(whole);
  const I16 bias = splat(127);
  const I16 second = whole + (splat(1) + (first ^ splat(-1)));
  return x * float_of(shift_left<23>(first + bias)) * float_of(shift_left<23>(second + bias));
#endif
}

// 2^x within 1 ulp. Results below 2^-126 become 0, because subnormal numbers are slow and not needed here.
// Intermediate values are not subnormal either: one in a vector costs more than a hundred cycles.
CLEAVE_INLINE F16 exp2(F16 x) {
  const F16 limited = min(splat(129.0f), max(splat(-126.0f), x));
  const F16 n = round_even(limited);
  const F16 r = limited - n;
  F16 q = splat(0.0001545316295f);
  q = fma(q, r, splat(0.001339086336f));
  q = fma(q, r, splat(0.009618082557f));
  q = fma(q, r, splat(0.05550357114f));
  q = fma(q, r, splat(0.2402265076f));
  q = fma(q, r, splat(0.693147188f));
  return select(x < splat(-126.0f), zero(), scale_by_power(fma(q, r, splat(1.0f)), n));
}

// e^x within 1 ulp; 0 below the least x with a power above 2^-126. The comparison uses the preceding number,
// because with one constant for both the compiler runs out of registers.
CLEAVE_INLINE F16 exp(F16 x) {
  constexpr float kLeast = -87.33654f, kBelow = -87.336548f;
  const F16 limited = min(splat(89.0f), max(splat(kLeast), x));
  const F16 n = round_even(limited * 1.44269504f);
  F16 r = fnma(n, splat(0.693145751953125f), limited);
  r = fnma(n, splat(1.42860682031e-6f), r);
  F16 q = splat(0.001392618359f);
  q = fma(q, r, splat(0.008363179053f));
  q = fma(q, r, splat(0.04166655462f));
  q = fma(q, r, splat(0.1666657699f));
  q = fma(q, r, splat(0.5f));
  const F16 p = fma(q * r, r, r) + splat(1.0f);
  return select(splat(kBelow) >= x, zero(), scale_by_power(p, n));
}

// 1 / (1 + e^-x).
CLEAVE_INLINE F16 sigmoid(F16 x) { return splat(1.0f) / (splat(1.0f) + exp(negate(x))); }

// tanh(x) within 2 ulp. Uses a polynomial (Cephes) near 0, where the quotient would lose digits.
CLEAVE_INLINE F16 tanh(F16 x) {
  const F16 size = abs(x), z = x * x;
  F16 q = splat(-5.70498872745e-3f);
  q = fma(q, z, splat(2.06390887954e-2f));
  q = fma(q, z, splat(-5.37397155531e-2f));
  q = fma(q, z, splat(1.33314422036e-1f));
  q = fma(q, z, splat(-3.33332819422e-1f));
  const F16 far = splat(1.0f) - splat(2.0f) / (exp(size + size) + splat(1.0f));
  return select(size < splat(0.625f), fma(q * z, x, x), select(x < zero(), negate(far), far));
}

// Distribution function and density of the standard normal.
struct Normal {
  F16 below, density;
};
// erfc(z) = e^(-z^2) t h(t), t = 1 / (1 + 0.4 z) for z >= 0; corrects for the rounding error of z^2.
CLEAVE_INLINE Normal normal(F16 x) {
  const F16 z = abs(x) * 0.70710678f;
  const F16 square = x * x;
  const F16 error = fma(x, x, negate(square));
  const F16 bell = exp(square * -0.5f) * fma(error, -0.5f, splat(1.0f));
  const F16 t = splat(1.0f) / fma(z, 0.4f, splat(1.0f));
  F16 h = splat(-0.03350112687f);
  h = fma(h, t, splat(0.2187853561f));
  h = fma(h, t, splat(-0.5465026178f));
  h = fma(h, t, splat(0.6093421803f));
  h = fma(h, t, splat(-0.3343118762f));
  h = fma(h, t, splat(0.2979731946f));
  h = fma(h, t, splat(0.1210599825f));
  h = fma(h, t, splat(0.216689386f));
  h = fma(h, t, splat(0.2247486653f));
  h = fma(h, t, splat(0.2257168574f));
  const F16 tail = bell * t * h * 0.5f;
  return {select(x < zero(), tail, splat(1.0f) - tail), bell * 0.39894228f};
}

// Words 4 * block .. 4 * block + 63 of a Philox4x32-10 sequence, in order.
struct PhiloxKey {
  uint64_t seed, stream;
};
CLEAVE_INLINE void philox_round(I16 c[4], uint32_t k0, uint32_t k1) {
  const I16 m0 = splat(int(0xD2511F53u)), m1 = splat(int(0xCD9E8D57u));
  const I16 even0 = mul_even(c[0], m0), odd0 = mul_even(odd_to_even(c[0]), m0);
  const I16 even1 = mul_even(c[2], m1), odd1 = mul_even(odd_to_even(c[2]), m1);
  const I16 high0 = even_odd(odd_to_even(even0), odd0), low0 = even_odd(even0, even_to_odd(odd0));
  const I16 high1 = even_odd(odd_to_even(even1), odd1), low1 = even_odd(even1, even_to_odd(odd1));
  c[0] = high1 ^ c[1] ^ splat(int(k0));
  c[2] = high0 ^ c[3] ^ splat(int(k1));
  c[1] = low1;
  c[3] = low0;
}

// Blocks block .. block + 15, word by word. Lane 4q + r computes block r * 4 + q, so the transposition within
// groups of four lanes leaves the words in order.
CLEAVE_INLINE void philox_blocks(PhiloxKey key, uint64_t block, I16 c[4]) {
  int low[16], high[16];
  for (int lane = 0; lane < 16; ++lane) {
    const uint64_t counter = block + uint64_t((lane % 4) * 4 + lane / 4);
    low[lane] = int(uint32_t(counter));
    high[lane] = int(uint32_t(counter >> 32));
  }
  c[0] = load(low), c[1] = load(high);
  c[2] = splat(int(uint32_t(key.stream))), c[3] = splat(int(uint32_t(key.stream >> 32)));
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) philox_round(c, k0, k1);
}
CLEAVE_INLINE void store_in_order(const I16 c[4], int* words) {
  const I16 t0 = unpack_lo32(c[0], c[1]), t1 = unpack_hi32(c[0], c[1]);
  const I16 t2 = unpack_lo32(c[2], c[3]), t3 = unpack_hi32(c[2], c[3]);
  store(words, unpack_lo64(t0, t2));
  store(words + 16, unpack_hi64(t0, t2));
  store(words + 32, unpack_lo64(t1, t3));
  store(words + 48, unpack_hi64(t1, t3));
}
CLEAVE_INLINE void philox_words(PhiloxKey key, uint64_t block, int* words) {
  I16 c[4];
  philox_blocks(key, block, c);
  store_in_order(c, words);
}

// ln(n 2^-24) for n in [1, 2^24], within 2 ulp.
CLEAVE_INLINE F16 log_of_24_bits(I16 n) {
  const int root_half = 0x3f3504f3;  // sqrt(1/2): reduces the mantissa to [sqrt(1/2), sqrt(2))
  const I16 shifted = bits_of(to_float(n)) + splat(0x3f800000 - root_half);
  const F16 power = to_float(shift_right<23>(shifted)) - splat(127.0f + 24.0f);
  const F16 f = float_of((shifted & splat(0x7fffff)) + splat(root_half)) - splat(1.0f);
  F16 q = splat(-0.07866668f);
  q = fma(q, f, splat(0.12821749f));
  q = fma(q, f, splat(-0.13101634f));
  q = fma(q, f, splat(0.14189f));
  q = fma(q, f, splat(-0.166276f));
  q = fma(q, f, splat(0.20001969f));
  q = fma(q, f, splat(-0.25000772f));
  q = fma(q, f, splat(0.33333322f));
  q = fma(q, f, splat(-0.49999997f));
  return fma(power, splat(0.69314718f), fma(q * f, f, f));
}

// Two standard normals from two random words (Box-Muller).
struct NormalPair {
  F16 cosine, sine;
};
CLEAVE_INLINE NormalPair normal_pair(I16 word0, I16 word1) {
  const F16 radius = sqrt(log_of_24_bits(shift_right<8>(word0) + splat(1)) * -2.0f);
  const F16 quarters = to_float(shift_right<8>(word1)) * 0x1p-22f;  // the angle, in [0, 4)
  const I16 k = to_int(quarters);
  const F16 r = quarters - to_float(k), z = r * r;
  const F16 s = r * fma(fma(fma(splat(-0.004602163f), z, splat(0.07968022f)), z, splat(-0.6459635f)), z,
                        splat(1.5707964f));
  const F16 c = fma(fma(fma(fma(splat(0.0009036299f), z, splat(-0.02086007f)), z, splat(0.2536692f)), z,
                        splat(-1.2337005f)),
                    z, splat(1.0f));
  const M16 odd = zero() < to_float(k & splat(1));
  const I16 sign_c = shift_left<30>((k + splat(1)) & splat(2)), sign_s = shift_left<30>(k & splat(2));
  return {radius * float_of(bits_of(select(odd, s, c)) ^ sign_c),
          radius * float_of(bits_of(select(odd, c, s)) ^ sign_s)};
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
