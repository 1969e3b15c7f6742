// Blocked attention backward; recomputes probabilities from the forward's log-sum-exp.
#pragma once
#include "kernels/cpu/attention_dropout.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Packed operands of a query head, and the sums of its key/value head.
template <class Element>
struct Gradients {
  Element *k, *k_t, *v_t;  // right operands over keys; keys and values over the head dim, in blocks
  Element *q, *q_rows, *dy, *dy_rows;  // current query head: right and left operands
  Element* weights;                    // a block as left operand
  float *lse, *delta;
  float *dq, *dk, *dv;
  float *p, *ds;  // one block of queries x kKeys each
  int64_t wide;
  float factor;  // converts scores to log2 units
};

// p = softmax, ds = p (dy v^T - delta), in place of the two products.
template <class Element>
CLEAVE_INLINE void weigh(const AttentionArgs& a, int64_t b, const Gradients<Element>& g, int64_t first_query,
                         int64_t key, int64_t queries) {
  const S16 factor = splat(g.factor);
  for (int64_t q = 0; q < queries; ++q) {
    const int64_t seen_from = first_key(a, b, first_query + q);
    const S16 lse = splat(g.lse[first_query + q]), delta = splat(g.delta[first_query + q]);
    for (int64_t v = 0; v < kKeys; v += 16) {
      const int64_t i = q * kKeys + v;
      const F16 score = visible(load(g.p + i) * factor, seen_from, last_key(a, first_query + q), key + v);
      const F16 p = exp2(score - lse);
      const F16 pull = p * (load(g.ds + i) - delta);
      store(g.p + i, p);
      store(g.ds + i, pull);
    }
  }
}

// Computes the slopes of the cap from capped scores; they multiply the gradients of the scores.
[[gnu::noipa]] static void cap_slopes(float* slopes, const float* scores, int64_t count, float cap) {
  const S16 inverse = splat(1.0f / cap), one = splat(1.0f);
  for (int64_t i = 0; i < count; i += 16) {
    const F16 t = load(scores + i) * inverse;
    store(slopes + i, fnma(t, t, F16(one)));
  }
}

// The same with score caps and weight dropout. A separate function, so that the plain loops keep their
// registers.
template <class Element>
[[gnu::noinline]] static void weigh_more(const AttentionArgs& a, int64_t b, int64_t h,
                                         const Gradients<Element>& g, int64_t first, int64_t key,
                                         int64_t queries) {
  float factors[kMostQueries * kKeys], slopes[kMostQueries * kKeys];
  if (a.cap > 0) {
    cap_scores(g.p, queries * kKeys, a.scale * kLog2E, a.cap * kLog2E);
    cap_slopes(slopes, g.p, queries * kKeys, a.cap * kLog2E);
  }
  if (a.dropout.p > 0) {
    dropout_factors(factors, a, b, h, first, key, queries);
    multiply_by(g.ds, factors, queries);
  }
  weigh(a, b, g, first, key, queries);
  if (a.cap > 0) multiply_by(g.ds, slopes, queries);
  if (a.dropout.p > 0) multiply_by(g.p, factors, queries);
}

template <class Blocks>
CLEAVE_INLINE void backward_block(const AttentionArgs& a, int64_t b, int64_t h,
                                  const Gradients<typename Blocks::Element>& g, int64_t first, int64_t j) {
  const int64_t wide = g.wide, key = j * kKeys, terms = Blocks::elements(a.head_dim);
  const int64_t queries = least(Blocks::kQueries, a.seq - first), width = Blocks::elements(wide);
  const int64_t over_queries = Blocks::elements(queries), over_keys = Blocks::elements(kKeys);
  const auto *q = g.q + Blocks::elements(first) * wide, *dy = g.dy + Blocks::elements(first) * wide;
  multiply<Blocks>({g.p, kKeys}, {g.q_rows + first * width, width}, {g.k_t + j * terms * kKeys, kKeys},
                   {queries, kKeys, terms});
  multiply<Blocks>({g.ds, kKeys}, {g.dy_rows + first * width, width}, {g.v_t + j * terms * kKeys, kKeys},
                   {queries, kKeys, terms});
  if (a.dropout.p > 0 || a.cap > 0)
    weigh_more(a, b, h, g, first, key, queries);
  else
    weigh(a, b, g, first, key, queries);
  multiply_add<Blocks>({g.dv + key * wide, wide}, Blocks::by_key(g.p, g.weights, queries), {dy, wide},
                       {kKeys, wide, over_queries});
  multiply_add<Blocks>({g.dk + key * wide, wide}, Blocks::by_key(g.ds, g.weights, queries), {q, wide},
                       {kKeys, wide, over_queries});
  multiply_add<Blocks>({g.dq + first * wide, wide}, Blocks::by_query(g.ds, g.weights, queries),
                       {g.k + j * over_keys * wide, wide}, {queries, wide, over_keys});
}

template <class Blocks>
static void load_query_head(const AttentionArgs& a, const Gradients<typename Blocks::Element>& g, int64_t b,
                            int64_t h) {
  using T = typename Blocks::Stored;
  const Head<T> head = head_of<T>(a, b, h);
  const int64_t stride = a.heads * a.head_dim, begin = b * a.seq * stride + h * a.head_dim;
  const T *y = static_cast<const T*>(a.y.data) + begin, *dy = static_cast<const T*>(a.dy.data) + begin;
  Blocks::along(g.q, head.q, head.stride, a.seq, a.seq, a.head_dim);
  Blocks::along(g.dy, dy, stride, a.seq, a.seq, a.head_dim);
  if (g.q_rows != g.q) {
    Blocks::rows(g.q_rows, head.q, head.stride, a.seq, a.seq, a.head_dim);
    Blocks::rows(g.dy_rows, dy, stride, a.seq, a.seq, a.head_dim);
  }
  for (int64_t t = 0; t < a.seq; ++t) {
    F16 sum = zero();
    for_vectors(0, a.head_dim, [&](int64_t i, auto n) {
      sum = fma(load(y + t * stride + i, n), load(dy + t * stride + i, n), sum);
    });
    g.delta[t] = sum_lanes(sum);
    g.lse[t] = a.lse[(b * a.heads + h) * a.seq + t] * kLog2E;
  }
  for (int64_t i = 0; i < Blocks::whole_rows(a.seq) * g.wide; i += 16) store(g.dq + i, zero());
}

template <class T>
static void store_rows(T* out, int64_t stride, const float* x, int64_t rows, int64_t width, float factor) {
  for (int64_t r = 0; r < rows; ++r)
    for_vectors(0, width, [&](int64_t i, auto n) {
      store(out + r * stride + i, load(x + r * padded(width) + i) * factor, n);
    });
}

// Divides the scratch of a key/value head. Left and right operands of the same rows share memory if the
// blocks pack them alike.
template <class Blocks>
static Gradients<typename Blocks::Element> gradients_in(float* scratch, const AttentionArgs& a) {
  using Element = typename Blocks::Element;
  const int64_t dim = a.head_dim, wide = padded(dim), blocks = (a.seq + kKeys - 1) / kKeys;
  const int64_t all = blocks * kKeys, rows = Blocks::elements(a.seq) * wide;
  Carver c{scratch};
  Gradients<Element> g{};
  g.k = c.take<Element>(Blocks::elements(all) * wide);
  g.k_t = c.take<Element>(blocks * Blocks::elements(dim) * kKeys);
  g.v_t = c.take<Element>(blocks * Blocks::elements(dim) * kKeys);
  g.q = c.take<Element>(rows), g.dy = c.take<Element>(rows);
  g.q_rows = g.q, g.dy_rows = g.dy;
  const int64_t high = Blocks::whole_rows(a.seq);
  if constexpr (Blocks::elements(2) != 2) {
    g.q_rows = c.take<Element>(high * Blocks::elements(wide));
    g.dy_rows = c.take<Element>(high * Blocks::elements(wide));
  }
  g.weights = c.take<Element>(Blocks::kQueries * kKeys);
  g.lse = c.take(a.seq), g.delta = c.take(a.seq);
  g.dq = c.take(high * wide), g.dk = c.take(all * wide), g.dv = c.take(all * wide);
  g.p = c.take(Blocks::kQueries * kKeys), g.ds = c.take(Blocks::kQueries * kKeys);
  g.wide = wide;
  g.factor = a.cap > 0 ? 1 : a.scale * kLog2E;
  return g;
}

template <class Blocks>
static void backward_kv_head(const AttentionArgs& a, int64_t b, int64_t kv, float* scratch) {
  using T = typename Blocks::Stored;
  const int64_t group = a.heads / a.kv_heads, dim = a.head_dim;
  const int64_t blocks = (a.seq + kKeys - 1) / kKeys, all = blocks * kKeys;
  const Head<T> head = head_of<T>(a, b, kv * group);
  const auto g = gradients_in<Blocks>(scratch, a);
  constexpr int64_t kQueries = Blocks::kQueries;
  Blocks::begin();
  Blocks::along(g.k, head.k, head.stride, a.seq, all, dim);
  for (int64_t j = 0, block = Blocks::elements(dim) * kKeys; j < blocks; ++j) {
    const int64_t key = j * kKeys;
    Blocks::across(g.k_t + j * block, head.k + key * head.stride, head.stride, a.seq - key, dim);
    Blocks::across(g.v_t + j * block, head.v + key * head.stride, head.stride, a.seq - key, dim);
  }
  for (int64_t i = 0; i < all * g.wide; i += 16) store(g.dk + i, zero()), store(g.dv + i, zero());
  T* dq = static_cast<T*>(a.dqkv.data) + b * a.seq * head.stride;
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    load_query_head<Blocks>(a, g, b, h);
    for (int64_t j = 0; j < blocks; ++j)
      for (int64_t first = a.causal ? j * kKeys / kQueries * kQueries : 0; first < a.seq; first += kQueries) {
        if (first_key(a, b, first) >= (j + 1) * kKeys) break;  // later queries do not see these keys either
        backward_block<Blocks>(a, b, h, g, first, j);
      }
    store_rows(dq + h * dim, head.stride, g.dq, a.seq, dim, a.scale);
  }
  store_rows(dq + (a.heads + kv) * dim, head.stride, g.dk, a.seq, dim, a.scale);
  store_rows(dq + (a.heads + a.kv_heads + kv) * dim, head.stride, g.dv, a.seq, dim, 1);
  Blocks::end();
}

// Runs the op for operands of one type.
template <class Blocks>
CLEAVE_INLINE void backward_heads(const AttentionArgs& args) {
  const int64_t items = args.batch * args.kv_heads;
  parallel_in_turn(items, 1, items > 1 && args.seq * args.seq * items > kSerialNumel,
                   [&](int64_t i, int thread) {
                     backward_kv_head<Blocks>(args, i / args.kv_heads, i % args.kv_heads,
                                              args.scratch + thread * args.scratch_numel);
                   });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
