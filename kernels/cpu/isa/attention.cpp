// Blocked attention with the softmax kept on line, and attention of one new token against a cache.
#include "kernels/cpu/attention_dropout.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

struct Softmax {
  float *scores, *top, *sum, *shrink, *out;
  int64_t wide;
  int64_t first_key[kQueries], last_key[kQueries];  // that each query sees
};

// scores become 2^(score - top); earlier sums and outputs shrink to the new top. A query that has seen no key
// so far keeps a top of minus infinity and a sum of zero.
CLEAVE_INLINE void soften(const Softmax& s, int64_t key, int64_t queries) {
  for (int64_t q = 0; q < queries; ++q) {
    float* row = s.scores + q * kKeys;
    F16 top = splat(s.top[q]);
    F16 x[kKeys / 16];
    for (int64_t v = 0; v < kKeys / 16; ++v) {
      x[v] = visible(load(row + 16 * v), s.first_key[q], s.last_key[q], key + 16 * v);
      top = max(top, x[v]);
    }
    const float highest = max_lanes(top), shift = highest > -__builtin_inff() ? highest : 0;
    F16 sum = zero();
    for (int64_t v = 0; v < kKeys / 16; ++v) {
      const F16 e = exp2(x[v] - splat(shift));
      sum = sum + e;
      store(row + 16 * v, e);
    }
    s.shrink[q] = s.top[q] - shift;
    s.top[q] = highest;
    store(s.scores + kQueries * kKeys + 16 * q, sum);
  }
  for (int64_t q = 0; q < queries; q += 16) store(s.shrink + q, exp2(load(s.shrink + q)));
  for (int64_t q = 0; q < queries; ++q) {
    s.sum[q] = s.sum[q] * s.shrink[q] + sum_lanes(load(s.scores + kQueries * kKeys + 16 * q));
    if (s.shrink[q] != 1)
      for (int64_t i = 0; i < s.wide; i += 16)
        store(s.out + q * s.wide + i, load(s.out + q * s.wide + i) * s.shrink[q]);
  }
}

template <class T>
void forward_head(const AttentionArgs& a, int64_t b, int64_t h, float* scratch) {
  const Head<T> head = head_of<T>(a, b, h);
  const int64_t wide = padded(a.head_dim), blocks = (a.seq + kKeys - 1) / kKeys;
  Carver carve{scratch};
  float* keys = carve.take(blocks * a.head_dim * kKeys);
  float* values = carve.take(blocks * kKeys * wide);
  float* query = carve.take(kQueries * wide);
  Softmax s{carve.take(kQueries * (kKeys + 16)),
            carve.take(kQueries),
            carve.take(kQueries),
            carve.take(kQueries),
            carve.take(kQueries * wide),
            wide,
            {},
            {}};
  for (int64_t j = 0; j < blocks; ++j)
    copy_transposed(keys + j * a.head_dim * kKeys, head.k + j * kKeys * head.stride, head.stride,
                    a.seq - j * kKeys, a.head_dim);
  copy_rows(values, head.v, head.stride, a.seq, blocks * kKeys, a.head_dim, 1);
  for (int64_t first = 0; first < a.seq; first += kQueries) {
    const int64_t queries = a.seq - first < kQueries ? a.seq - first : kQueries;
    copy_rows(query, head.q + first * head.stride, head.stride, queries, queries, a.head_dim,
              a.scale * kLog2E);
    for (int64_t i = 0; i < kQueries; ++i) s.top[i] = -__builtin_inff(), s.sum[i] = 0, s.shrink[i] = 0;
    for (int64_t i = 0; i < queries; ++i)
      s.first_key[i] = first_key(a, b, first + i), s.last_key[i] = last_key(a, first + i);
    for (int64_t i = 0; i < kQueries * wide; i += 16) store(s.out + i, zero());
    for (int64_t j = s.first_key[0] / kKeys; j * kKeys <= s.last_key[queries - 1]; ++j) {
      const float* k = keys + j * a.head_dim * kKeys;
      multiply({s.scores, kKeys}, {query, wide}, {k, kKeys}, {queries, kKeys, a.head_dim});
      if (a.cap > 0) cap_scores(s.scores, queries * kKeys, a.cap * kLog2E);
      soften(s, j * kKeys, queries);
      if (a.dropout.p > 0) {  // behind the sums, which are of all weights
        float factors[kQueries * kKeys];
        dropout_factors(factors, a, b, h, first, j * kKeys, queries);
        multiply_by(s.scores, factors, queries);
      }
      multiply_add({s.out, wide}, {s.scores, kKeys}, {values + j * kKeys * wide, wide},
                   {queries, wide, kKeys});
    }
    for (int64_t q = 0; q < queries; ++q) {
      T* y = static_cast<T*>(a.y.data) + ((b * a.seq + first + q) * a.heads + h) * a.head_dim;
      const float inverse = 1.0f / s.sum[q];
      for_vectors(0, a.head_dim,
                  [&](int64_t i, auto n) { store(y + i, load(s.out + q * wide + i) * inverse, n); });
      a.lse[(b * a.heads + h) * a.seq + first + q] = s.top[q] * kLn2 + __builtin_logf(s.sum[q]);
    }
  }
}

}  // namespace

void attention(const AttentionArgs& args) {
  with_type(args.qkv.type, [&](auto t) {
    const int64_t items = args.batch * args.heads;
    parallel_in_turn(items, 1, items > 1 && args.seq * args.seq * items > kSerialNumel,
                     [&](int64_t i, int thread) {
                       forward_head<decltype(t)>(args, i / args.heads, i % args.heads,
                                                 args.scratch + thread * args.scratch_numel);
                     });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
