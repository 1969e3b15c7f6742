// Blocked attention with online softmax.
#pragma once
#include "kernels/cpu/attention_dropout.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

struct Softmax {
  float *scores, *sums, *top, *sum, *shrink, *out;
  int64_t wide;
  float factor;                                             // converts scores to log2 units
  int64_t first_key[kMostQueries], last_key[kMostQueries];  // visible keys per query
};

// Replaces scores by 2^(factor score - top), and rescales earlier sums and outputs to the new top. A query
// without a visible key so far keeps a top of minus infinity and a sum of zero.
CLEAVE_INLINE void soften(const Softmax& s, int64_t key, int64_t queries) {
  const float factor = s.factor;  // a local copy, because stores through s could alias it
  for (int64_t q = 0; q < queries; ++q) {
    float* row = s.scores + q * kKeys;
    F16 top = splat(s.top[q]);
    F16 x[kKeys / 16];
    for (int64_t v = 0; v < kKeys / 16; ++v) {
      x[v] = visible(load(row + 16 * v) * factor, s.first_key[q], s.last_key[q], key + 16 * v);
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
    store(s.sums + 16 * q, sum);
  }
  for (int64_t q = 0; q < queries; q += 16) store(s.shrink + q, exp2(load(s.shrink + q)));
  for (int64_t q = 0; q < queries; ++q) {
    s.sum[q] = s.sum[q] * s.shrink[q] + sum_lanes(load(s.sums + 16 * q));
    if (s.shrink[q] != 1)
      for (int64_t i = 0; i < s.wide; i += 16)
        store(s.out + q * s.wide + i, load(s.out + q * s.wide + i) * s.shrink[q]);
  }
}

// Packed operands of a query head.
template <class Element>
struct Forward {
  Element *keys, *values;    // whole sequence
  Element *query, *weights;  // a block of queries
};

template <class Blocks>
CLEAVE_INLINE void forward_block(const AttentionArgs& a, int64_t b, int64_t h,
                                 const Forward<typename Blocks::Element>& f, Softmax& s, int64_t first,
                                 int64_t j) {
  const int64_t queries = least(Blocks::kQueries, a.seq - first), terms = Blocks::elements(a.head_dim);
  const int64_t width = Blocks::elements(s.wide);
  multiply<Blocks>({s.scores, kKeys}, {f.query, width}, {f.keys + j * terms * kKeys, kKeys},
                   {queries, kKeys, terms});
  if (a.cap > 0) cap_scores(s.scores, queries * kKeys, a.scale * kLog2E, a.cap * kLog2E);
  soften(s, j * kKeys, queries);
  if (a.dropout.p > 0) {  // after the sums, which include all weights
    float factors[kMostQueries * kKeys];
    dropout_factors(factors, a, b, h, first, j * kKeys, queries);
    multiply_by(s.scores, factors, queries);
  }
  multiply_add<Blocks>({s.out, s.wide}, Blocks::by_query(s.scores, f.weights, queries),
                       {f.values + j * Blocks::elements(kKeys) * s.wide, s.wide},
                       {queries, s.wide, Blocks::elements(kKeys)});
}

template <class Blocks>
static void forward_head(const AttentionArgs& a, int64_t b, int64_t h, float* scratch) {
  using T = typename Blocks::Stored;
  using Element = typename Blocks::Element;
  const Head<T> head = head_of<T>(a, b, h);
  const int64_t wide = padded(a.head_dim), blocks = (a.seq + kKeys - 1) / kKeys;
  constexpr int64_t kQueries = Blocks::kQueries;
  const int64_t block_of_keys = Blocks::elements(a.head_dim) * kKeys;
  Carver carve{scratch};
  const Forward<Element> f{carve.take<Element>(blocks * block_of_keys),
                           carve.take<Element>(blocks * Blocks::elements(kKeys) * wide),
                           carve.take<Element>(kQueries * Blocks::elements(wide)),
                           carve.take<Element>(kQueries * kKeys)};
  Softmax s{carve.take(kQueries * kKeys),
            carve.take(kQueries * 16),
            carve.take(kQueries),
            carve.take(kQueries),
            carve.take(kQueries),
            carve.take(kQueries * wide),
            wide,
            a.cap > 0 ? 1 : a.scale * kLog2E,
            {},
            {}};
  Blocks::begin();
  for (int64_t j = 0; j < blocks; ++j)
    Blocks::across(f.keys + j * block_of_keys, head.k + j * kKeys * head.stride, head.stride,
                   a.seq - j * kKeys, a.head_dim);
  Blocks::along(f.values, head.v, head.stride, a.seq, blocks * kKeys, a.head_dim);
  for (int64_t first = 0; first < a.seq; first += kQueries) {
    const int64_t queries = least(kQueries, a.seq - first);
    Blocks::rows(f.query, head.q + first * head.stride, head.stride, queries, queries, a.head_dim);
    for (int64_t i = 0; i < kQueries; ++i) s.top[i] = -__builtin_inff(), s.sum[i] = 0, s.shrink[i] = 0;
    for (int64_t i = 0; i < queries; ++i)
      s.first_key[i] = first_key(a, b, first + i), s.last_key[i] = last_key(a, first + i);
    for (int64_t i = 0; i < kQueries * wide; i += 16) store(s.out + i, zero());
    for (int64_t j = s.first_key[0] / kKeys; j * kKeys <= s.last_key[queries - 1]; ++j)
      forward_block<Blocks>(a, b, h, f, s, first, j);
    for (int64_t q = 0; q < queries; ++q) {
      T* y = static_cast<T*>(a.y.data) + ((b * a.seq + first + q) * a.heads + h) * a.head_dim;
      const float inverse = 1.0f / s.sum[q];
      for_vectors(0, a.head_dim,
                  [&](int64_t i, auto n) { store(y + i, load(s.out + q * wide + i) * inverse, n); });
      a.lse[(b * a.heads + h) * a.seq + first + q] = s.top[q] * kLn2 + __builtin_logf(s.sum[q]);
    }
  }
  Blocks::end();
}

// Runs the op for operands of one type.
template <class Blocks>
CLEAVE_INLINE void forward_heads(const AttentionArgs& args) {
  const int64_t items = args.batch * args.heads;
  parallel_in_turn(items, 1, items > 1 && args.seq * args.seq * items > kSerialNumel,
                   [&](int64_t i, int thread) {
                     forward_head<Blocks>(args, i / args.heads, i % args.heads,
                                          args.scratch + thread * args.scratch_numel);
                   });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
