// Blocked attention backward: probabilities are computed again from the forward's log-sum-exp.
#include "kernels/cpu/attention_dropout.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

// What backward holds of one query head, and the sums for its key/value head.
struct Gradients {
  float *k, *k_t, *v_t;         // keys, and keys and values transposed by blocks
  float *q, *dy, *lse, *delta;  // of the query head at work
  float *dq, *dk, *dv;
  float *p, *ds;  // one block of kQueries x kKeys each
  int64_t wide;
};

// p = softmax, ds = p (dy v^T - delta), in place of the two products.
CLEAVE_INLINE void weigh(const AttentionArgs& a, int64_t b, const Gradients& g, int64_t first_query,
                         int64_t key, int64_t queries) {
  for (int64_t q = 0; q < queries; ++q) {
    const int64_t seen_from = first_key(a, b, first_query + q);
    const S16 lse = splat(g.lse[first_query + q]), delta = splat(g.delta[first_query + q]);
    for (int64_t v = 0; v < kKeys; v += 16) {
      const int64_t i = q * kKeys + v;
      const F16 score = visible(load(g.p + i), seen_from, last_key(a, first_query + q), key + v);
      const F16 p = exp2(score - lse);
      const F16 pull = p * (load(g.ds + i) - delta);
      store(g.p + i, p);
      store(g.ds + i, pull);
    }
  }
}

// What a cap multiplies the gradients of the scores before it with, from those behind it.
[[gnu::noipa]] void cap_slopes(float* slopes, const float* scores, int64_t count, float cap) {
  const S16 inverse = splat(1.0f / cap), one = splat(1.0f);
  for (int64_t i = 0; i < count; i += 16) {
    const F16 t = load(scores + i) * inverse;
    store(slopes + i, fnma(t, t, F16(one)));
  }
}

// The same with a cap of the scores and dropout of the weights.
CLEAVE_INLINE void weigh_more(const AttentionArgs& a, int64_t b, int64_t h, const Gradients& g, int64_t first,
                              int64_t key, int64_t queries) {
  float factors[kQueries * kKeys], slopes[kQueries * kKeys];
  if (a.cap > 0) {
    cap_scores(g.p, queries * kKeys, a.cap * kLog2E);
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

CLEAVE_INLINE void backward_block(const AttentionArgs& a, int64_t b, int64_t h, const Gradients& g,
                                  int64_t first, int64_t j) {
  const int64_t wide = g.wide, head_dim = a.head_dim, key = j * kKeys;
  const int64_t queries = a.seq - first < kQueries ? a.seq - first : kQueries;
  const float *q = g.q + first * wide, *dy = g.dy + first * wide;
  multiply({g.p, kKeys}, {q, wide}, {g.k_t + key * head_dim, kKeys}, {queries, kKeys, head_dim});
  multiply({g.ds, kKeys}, {dy, wide}, {g.v_t + key * head_dim, kKeys}, {queries, kKeys, head_dim});
  if (a.dropout.p > 0 || a.cap > 0)
    weigh_more(a, b, h, g, first, key, queries);
  else
    weigh(a, b, g, first, key, queries);
  multiply_add({g.dv + key * wide, wide}, transposed(g.p, kKeys), {dy, wide}, {kKeys, wide, queries});
  multiply_add({g.dk + key * wide, wide}, transposed(g.ds, kKeys), {q, wide}, {kKeys, wide, queries});
  multiply_add({g.dq + first * wide, wide}, {g.ds, kKeys}, {g.k + key * wide, wide}, {queries, wide, kKeys});
}

template <class T>
void load_query_head(const AttentionArgs& a, const Gradients& g, int64_t b, int64_t h) {
  const Head<T> head = head_of<T>(a, b, h);
  const int64_t stride = a.heads * a.head_dim, begin = b * a.seq * stride + h * a.head_dim;
  const T *y = static_cast<const T*>(a.y.data) + begin, *dy = static_cast<const T*>(a.dy.data) + begin;
  copy_rows(g.q, head.q, head.stride, a.seq, a.seq, a.head_dim, a.scale * kLog2E);
  copy_rows(g.dy, dy, stride, a.seq, a.seq, a.head_dim, 1);
  for (int64_t t = 0; t < a.seq; ++t) {
    F16 sum = zero();
    for_vectors(0, a.head_dim, [&](int64_t i, auto n) {
      sum = fma(load(y + t * stride + i, n), load(dy + t * stride + i, n), sum);
    });
    g.delta[t] = sum_lanes(sum);
    g.lse[t] = a.lse[(b * a.heads + h) * a.seq + t] * kLog2E;
  }
  for (int64_t i = 0; i < a.seq * g.wide; i += 16) store(g.dq + i, zero());
}

template <class T>
void store_rows(T* out, int64_t stride, const float* x, int64_t rows, int64_t width, float factor) {
  for (int64_t r = 0; r < rows; ++r)
    for_vectors(0, width, [&](int64_t i, auto n) {
      store(out + r * stride + i, load(x + r * padded(width) + i) * factor, n);
    });
}

template <class T>
void backward_kv_head(const AttentionArgs& a, int64_t b, int64_t kv, float* scratch) {
  const int64_t group = a.heads / a.kv_heads, dim = a.head_dim, wide = padded(dim);
  const int64_t blocks = (a.seq + kKeys - 1) / kKeys, all = blocks * kKeys;
  const Head<T> head = head_of<T>(a, b, kv * group);
  Carver c{scratch};
  const Gradients g{c.take(all * wide),
                    c.take(all * dim),
                    c.take(all * dim),
                    c.take(a.seq * wide),
                    c.take(a.seq * wide),
                    c.take(a.seq),
                    c.take(a.seq),
                    c.take(a.seq * wide),
                    c.take(all * wide),
                    c.take(all * wide),
                    c.take(kQueries * kKeys),
                    c.take(kQueries * kKeys),
                    wide};
  copy_rows(g.k, head.k, head.stride, a.seq, all, dim, 1);
  for (int64_t j = 0; j < blocks; ++j) {
    const int64_t key = j * kKeys;
    copy_transposed(g.k_t + key * dim, head.k + key * head.stride, head.stride, a.seq - key, dim);
    copy_transposed(g.v_t + key * dim, head.v + key * head.stride, head.stride, a.seq - key, dim);
  }
  for (int64_t i = 0; i < all * wide; i += 16) store(g.dk + i, zero()), store(g.dv + i, zero());
  T* dq = static_cast<T*>(a.dqkv.data) + b * a.seq * head.stride;
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    load_query_head<T>(a, g, b, h);
    for (int64_t j = 0; j < blocks; ++j)
      for (int64_t first = a.causal ? j * kKeys / kQueries * kQueries : 0; first < a.seq; first += kQueries) {
        if (first_key(a, b, first) >= (j + 1) * kKeys) break;  // no later query sees these keys either
        backward_block(a, b, h, g, first, j);
      }
    store_rows(dq + h * dim, head.stride, g.dq, a.seq, dim, a.scale);
  }
  // q carries scale * log2(e) from the scores; the key gradient needs the scale alone.
  store_rows(dq + (a.heads + kv) * dim, head.stride, g.dk, a.seq, dim, kLn2);
  store_rows(dq + (a.heads + a.kv_heads + kv) * dim, head.stride, g.dv, a.seq, dim, 1);
}

}  // namespace

void attention_grad(const AttentionArgs& args) {
  with_type(args.qkv.type, [&](auto t) {
    const int64_t items = args.batch * args.kv_heads;
    parallel_in_turn(items, 1, items > 1 && args.seq * args.seq * items > kSerialNumel,
                     [&](int64_t i, int thread) {
                       backward_kv_head<decltype(t)>(args, i / args.kv_heads, i % args.kv_heads,
                                                     args.scratch + thread * args.scratch_numel);
                     });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
