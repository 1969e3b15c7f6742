// Attention of single rows over cached keys and values, with online softmax.
#include "kernels/cpu/attention_blocks.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

// Scratch of one query head.
struct Query {
  float *query, *out, *scores;
  int64_t wide;
  float top, sum;
};

// Scores of `count` keys in log2 units, like the cap; minus infinity up to a whole vector.
template <class T>
CLEAVE_INLINE void score(const Query& s, const T* keys, int64_t count, int64_t width, float cap) {
  for (int64_t k = 0; k < count; ++k) {
    F16 sum = zero();
    for_vectors(0, width,
                [&](int64_t i, auto n) { sum = fma(load(s.query + i), load(keys + k * width + i, n), sum); });
    s.scores[k] = sum_lanes(sum);
  }
  if (cap > 0) cap_scores(s.scores, count, 1, cap);  // also changes the rest of the last vector
  for (int64_t k = count; k % 16; ++k) s.scores[k] = -__builtin_inff();
}

// Replaces scores by 2^(score - top); returns the factor for earlier sums and outputs.
CLEAVE_INLINE float soften(Query& s, int64_t count) {
  F16 top = splat(s.top);
  for (int64_t k = 0; k < count; k += 16) top = max(top, load(s.scores + k));
  const float highest = max_lanes(top);
  F16 sum = zero();
  for (int64_t k = 0; k < count; k += 16) {
    const F16 e = exp2(load(s.scores + k) - splat(highest));
    store(s.scores + k, e);
    sum = sum + e;
  }
  float shrunk[16];
  store(shrunk, exp2(splat(s.top - highest)));
  s.sum = s.sum * shrunk[0] + sum_lanes(sum);
  s.top = highest;
  return shrunk[0];
}

// out = out * shrink + the weighted values.
template <class T>
CLEAVE_INLINE void add_values(const Query& s, const T* values, int64_t count, int64_t width, float shrink) {
  for_vectors(0, width, [&](int64_t i, auto n) {
    F16 sum = load(s.out + i) * shrink;
    for (int64_t k = 0; k < count; ++k) sum = fma(load(values + k * width + i, n), s.scores[k], sum);
    store(s.out + i, sum);
  });
}

template <class T>
void attend(const KvCacheAttentionArgs& a, int64_t row, int64_t head, float* scratch) {
  const int64_t d = a.head_dim, wide = padded(d);
  const T* from = static_cast<const T*>(a.qkv.data) + row * (a.heads + 2 * a.kv_heads) * d + head * d;
  T* y = static_cast<T*>(a.y.data) + (row * a.heads + head) * d;
  const int64_t text = a.texts[row], end = a.positions[row] + int64_t{1};
  if (text < 0) {
    for_vectors(0, d, [=](int64_t i, auto n) { store(y + i, zero(), n); });
    return;
  }
  Carver carve{scratch};
  Query s{carve.take(wide), carve.take(wide), carve.take(kKeys), wide, -__builtin_inff(), 0};
  for_vectors(0, d, [=, scale = a.scale * kLog2E](int64_t i, auto n) {
    store(s.query + i, load(from + i, n) * scale);  // whole vectors, with zeros beyond d
  });
  for (int64_t i = 0; i < wide; i += 16) store(s.out + i, zero());
  const int64_t kept = (text * a.kv_heads + head / (a.heads / a.kv_heads)) * a.cached_positions * d;
  const T *keys = static_cast<const T*>(a.keys.data) + kept,
          *values = static_cast<const T*>(a.values.data) + kept;
  int64_t key = a.window && end > a.window ? end - a.window : 0;
  for (; key < end; key += kKeys) {
    const int64_t count = end - key < kKeys ? end - key : kKeys;
    score(s, keys + key * d, count, d, a.cap * kLog2E);
    const float shrink = soften(s, count);
    add_values(s, values + key * d, count, d, shrink);
  }
  const float inverse = 1.0f / s.sum;
  for_vectors(0, d, [=](int64_t i, auto n) { store(y + i, load(s.out + i) * inverse, n); });
}

}  // namespace

void kv_cache_attention(const KvCacheAttentionArgs& args) {
  int64_t keys = 0;
  for (int64_t r = 0; r < args.rows; ++r) keys += args.positions[r] + 1;
  with_type(args.qkv.type, [&](auto t) {
    parallel_in_turn(args.rows * args.heads, 1, keys * args.heads * args.head_dim > kSerialNumel,
                     [&](int64_t i, int thread) {
                       attend<decltype(t)>(args, i / args.heads, i % args.heads,
                                           args.scratch + thread * args.scratch_numel);
                     });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
