// Dropout of attention weights, for training.
#pragma once
#include "kernels/cpu/attention_blocks.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Random numbers of a row of kKeys weights; the first has number `index`. `words` must have space for one
// more Philox block. A separate function, so that the loops of attention keep their registers.
[[gnu::noinline]] static void row_of_words(int* words, PhiloxKey generator, uint64_t index) {
  for (uint64_t w = 0; w < uint64_t(kKeys) + index % 4; w += 64)
    philox_words(generator, (index + w) / 4, words + w);
}

// Dropout factors, 0 or 1 / (1 - p), of a block of weights: `queries` queries from `first`, kKeys keys from
// `key`.
[[gnu::noinline]] static void dropout_factors(float* factors, const AttentionArgs& a, int64_t b, int64_t h,
                                              int64_t first, int64_t key, int64_t queries) {
  const auto& d = a.dropout;
  const int64_t row = ((d.first_sample + b) * d.all_heads + d.first_head + h) * a.seq + first;
  const S16 p = splat(d.p), kept = splat(1.0f / (1.0f - d.p));
  for (int64_t q = 0; q < queries; ++q) {
    const auto index = uint64_t((row + q) * a.seq + key);
    int words[kKeys + 64];
    row_of_words(words, {d.seed, d.stream}, index);
    for (int64_t v = 0; v < kKeys; v += 16) {
      const F16 uniform = to_float(shift_right<8>(load(words + index % 4 + v))) * 0x1p-24f;
      store(factors + q * kKeys + v, select(uniform >= p, F16(kept), zero()));
    }
  }
}
CLEAVE_INLINE void multiply_by(float* weights, const float* factors, int64_t queries) {
  for (int64_t i = 0; i < queries * kKeys; i += 16) store(weights + i, load(weights + i) * load(factors + i));
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
