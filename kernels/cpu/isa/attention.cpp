// Blocked attention with the softmax kept on line. Queries come in blocks of kQueries, keys in blocks of
// kKeys; keys and values of a block are copied once to fp32, so the products run on contiguous rows whatever
// the storage type.
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vector_math.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace cleave::cpu::CLEAVE_ISA {
namespace {

using attention_blocks::kKeys;
using attention_blocks::kQueries;
using attention_blocks::padded;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// Takes consecutive pieces of a thread's scratch.
struct Carver {
  float* next;
  float* take(int64_t numel) {
    float* p = next;
    next += (numel + 15) / 16 * 16;
    return p;
  }
};

// rows x width of T at `x` (row stride `stride`) to fp32 rows of padded width, times factor; rows up to `all`
// are zero.
template <class T>
void copy_rows(float* out, const T* x, int64_t stride, int64_t rows, int64_t all, int64_t width,
               float factor) {
  const int64_t wide = padded(width);
  for (int64_t r = 0; r < all; ++r) {
    float* to = out + r * wide;
    if (r < rows)
      for_vectors(0, width, [=](int64_t i, auto n) { store(to + i, load(x + r * stride + i, n) * factor); });
    else
      for (int64_t i = 0; i < wide; i += 16) store(to + i, zero());
  }
}

// One block of kKeys rows transposed: out[d * kKeys + key]; rows from `rows` on are zero.
template <class T>
void copy_transposed(float* out, const T* x, int64_t stride, int64_t rows, int64_t width) {
  const auto row = [=](int64_t key, int64_t d, auto n) {
    return key < rows ? load(x + key * stride + d, n) : zero();
  };
  for (int64_t key = 0; key < kKeys; key += 4)
    for_vectors(0, width, [&](int64_t d, auto n) {
      float whole[16 * 4];
      const bool fits = d + 16 <= width;
      const F16 r0 = row(key, d, n), r1 = row(key + 1, d, n), r2 = row(key + 2, d, n),
                r3 = row(key + 3, d, n);
      if (fits) return store_transposed<kKeys>(out + d * kKeys + key, r0, r1, r2, r3);
      store_transposed<4>(whole, r0, r1, r2, r3);
      for (int64_t i = 0; i < (width - d) * 4; ++i) out[(d + i / 4) * kKeys + key + i % 4] = whole[i];
    });
}

template <class T>
struct Head {
  const T *q, *k, *v;
  int64_t stride;  // of a row of qkv
};

template <class T>
Head<T> head_of(const AttentionArgs& a, int64_t b, int64_t h) {
  const int64_t stride = (a.heads + 2 * a.kv_heads) * a.head_dim;
  const T* row = static_cast<const T*>(a.qkv.data) + b * a.seq * stride;
  const int64_t kv = h / (a.heads / a.kv_heads);
  return {row + h * a.head_dim, row + (a.heads + kv) * a.head_dim,
          row + (a.heads + a.kv_heads + kv) * a.head_dim, stride};
}

// Key j is visible to query i when j <= i.
CLEAVE_INLINE F16 visible(F16 score, int64_t query, int64_t key, float hidden) {
  const int64_t last = query - key;  // the last visible lane
  if (last >= 15) return score;
  return select(lane_index() < splat(float(last + 1)), score, splat(hidden));
}

struct Softmax {
  float *scores, *top, *sum, *shrink, *out;
  int64_t wide;
};

// scores become 2^(score - top); earlier sums and outputs shrink to the new top.
CLEAVE_INLINE void soften(const Softmax& s, int64_t first_query, int64_t first_key, int64_t queries) {
  for (int64_t q = 0; q < queries; ++q) {
    float* row = s.scores + q * kKeys;
    F16 top = splat(s.top[q]);
    F16 x[kKeys / 16];
    for (int64_t v = 0; v < kKeys / 16; ++v) {
      x[v] = visible(load(row + 16 * v), first_query + q, first_key + 16 * v, -__builtin_inff());
      top = max(top, x[v]);
    }
    const float highest = max_lanes(top);
    F16 sum = zero();
    for (int64_t v = 0; v < kKeys / 16; ++v) {
      const F16 e = exp2(x[v] - splat(highest));
      sum = sum + e;
      store(row + 16 * v, e);
    }
    s.shrink[q] = s.top[q] - highest;
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
            wide};
  for (int64_t j = 0; j < blocks; ++j)
    copy_transposed(keys + j * a.head_dim * kKeys, head.k + j * kKeys * head.stride, head.stride,
                    a.seq - j * kKeys, a.head_dim);
  copy_rows(values, head.v, head.stride, a.seq, blocks * kKeys, a.head_dim, 1);
  for (int64_t first = 0; first < a.seq; first += kQueries) {
    const int64_t queries = a.seq - first < kQueries ? a.seq - first : kQueries;
    copy_rows(query, head.q + first * head.stride, head.stride, queries, queries, a.head_dim,
              a.scale * kLog2E);
    for (int64_t i = 0; i < kQueries; ++i) s.top[i] = -__builtin_inff(), s.sum[i] = 0, s.shrink[i] = 0;
    for (int64_t i = 0; i < kQueries * wide; i += 16) store(s.out + i, zero());
    for (int64_t j = 0; j * kKeys < first + queries; ++j) {
      multiply({.a = query,
                .a_row = wide,
                .a_col = 1,
                .b = keys + j * a.head_dim * kKeys,
                .b_row = kKeys,
                .c = s.scores,
                .c_row = kKeys,
                .m = queries,
                .n = kKeys,
                .k = a.head_dim,
                .add = false});
      soften(s, first, j * kKeys, queries);
      multiply({.a = s.scores,
                .a_row = kKeys,
                .a_col = 1,
                .b = values + j * kKeys * wide,
                .b_row = wide,
                .c = s.out,
                .c_row = wide,
                .m = queries,
                .n = wide,
                .k = kKeys,
                .add = true});
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

// What backward holds of one query head, and the sums for its key/value head.
struct Gradients {
  float *k, *k_t, *v_t;         // keys, and keys and values transposed by blocks
  float *q, *dy, *lse, *delta;  // of the query head at work
  float *dq, *dk, *dv;
  float *p, *ds;  // one block of kQueries x kKeys each
  int64_t wide;
};

// p = softmax, ds = p (dy v^T - delta), in place of the two products.
CLEAVE_INLINE void weigh(const Gradients& g, int64_t first_query, int64_t first_key, int64_t queries) {
  for (int64_t q = 0; q < queries; ++q) {
    const F16 lse = splat(g.lse[first_query + q]), delta = splat(g.delta[first_query + q]);
    for (int64_t v = 0; v < kKeys; v += 16) {
      const int64_t i = q * kKeys + v;
      const F16 score = visible(load(g.p + i), first_query + q, first_key + v, -__builtin_inff());
      const F16 p = exp2(score - lse);
      const F16 pull = p * (load(g.ds + i) - delta);
      store(g.p + i, p);
      store(g.ds + i, pull);
    }
  }
}

CLEAVE_INLINE void backward_block(const Gradients& g, int64_t head_dim, int64_t first, int64_t queries,
                                  int64_t j) {
  const int64_t wide = g.wide, key = j * kKeys;
  const float *q = g.q + first * wide, *dy = g.dy + first * wide;
  multiply({.a = q,
            .a_row = wide,
            .a_col = 1,
            .b = g.k_t + key * head_dim,
            .b_row = kKeys,
            .c = g.p,
            .c_row = kKeys,
            .m = queries,
            .n = kKeys,
            .k = head_dim,
            .add = false});
  multiply({.a = dy,
            .a_row = wide,
            .a_col = 1,
            .b = g.v_t + key * head_dim,
            .b_row = kKeys,
            .c = g.ds,
            .c_row = kKeys,
            .m = queries,
            .n = kKeys,
            .k = head_dim,
            .add = false});
  weigh(g, first, key, queries);
  multiply({.a = g.p,
            .a_row = 1,
            .a_col = kKeys,
            .b = dy,
            .b_row = wide,
            .c = g.dv + key * wide,
            .c_row = wide,
            .m = kKeys,
            .n = wide,
            .k = queries,
            .add = true});
  multiply({.a = g.ds,
            .a_row = 1,
            .a_col = kKeys,
            .b = q,
            .b_row = wide,
            .c = g.dk + key * wide,
            .c_row = wide,
            .m = kKeys,
            .n = wide,
            .k = queries,
            .add = true});
  multiply({.a = g.ds,
            .a_row = kKeys,
            .a_col = 1,
            .b = g.k + key * wide,
            .b_row = wide,
            .c = g.dq + first * wide,
            .c_row = wide,
            .m = queries,
            .n = wide,
            .k = kKeys,
            .add = true});
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
      for (int64_t first = j * kKeys / kQueries * kQueries; first < a.seq; first += kQueries)
        backward_block(g, dim, first, a.seq - first < kQueries ? a.seq - first : kQueries, j);
    store_rows(dq + h * dim, head.stride, g.dq, a.seq, dim, a.scale);
  }
  // q carries scale * log2(e) from the scores; the key gradient needs the scale alone.
  store_rows(dq + (a.heads + kv) * dim, head.stride, g.dk, a.seq, dim, kLn2);
  store_rows(dq + (a.heads + a.kv_heads + kv) * dim, head.stride, g.dv, a.seq, dim, 1);
}

template <class T>
void decode_head(const DecodeArgs& a, int64_t b, int64_t h) {
  const int64_t dim = a.head_dim, kv = h / (a.heads / a.kv_heads), row = a.kv_heads * dim;
  const T* q = static_cast<const T*>(a.qkv.data) + b * (a.heads + 2 * a.kv_heads) * dim + h * dim;
  const T* cache = static_cast<const T*>(a.cache.data) + b * a.capacity * 2 * row + kv * dim;
  float top = -__builtin_inff(), sum = 0;
  float out[kDecodeDim] = {};
  for (int64_t t = 0; t <= a.position; ++t) {
    const T *k = cache + t * 2 * row, *v = k + row;
    F16 dot = zero();
    for_vectors(0, dim, [&](int64_t i, auto n) { dot = fma(load(q + i, n), load(k + i, n), dot); });
    const float score = sum_lanes(dot) * a.scale, highest = score > top ? score : top;
    float pair[16];
    store(pair, exp(select(lane_index() < splat(0.5f), splat(top - highest), splat(score - highest))));
    sum = sum * pair[0] + pair[1];
    top = highest;
    for (int64_t i = 0; i < dim; i += 16) {
      const int64_t rest = dim - i;
      const F16 value = rest < 16 ? load(v + i, Part{int(rest)}) : load(v + i);
      store(out + i, fma(value, pair[1], load(out + i) * pair[0]));
    }
  }
  T* y = static_cast<T*>(a.y.data) + (b * a.heads + h) * dim;
  for_vectors(0, dim, [&](int64_t i, auto n) { store(y + i, load(out + i) * (1.0f / sum), n); });
}

}  // namespace

void attention(const AttentionArgs& args) {
  with_type(args.qkv.type, [&](auto t) {
    const int64_t items = args.batch * args.heads;
#pragma omp parallel for schedule(dynamic) if (items > 1 && args.seq * args.seq * items > kSerialNumel)
    for (int64_t i = 0; i < items; ++i)
      forward_head<decltype(t)>(args, i / args.heads, i % args.heads,
                                args.scratch + thread_number() * args.scratch_numel);
  });
}

void attention_grad(const AttentionArgs& args) {
  with_type(args.qkv.type, [&](auto t) {
    const int64_t items = args.batch * args.kv_heads;
#pragma omp parallel for schedule(dynamic) if (items > 1 && args.seq * args.seq * items > kSerialNumel)
    for (int64_t i = 0; i < items; ++i)
      backward_kv_head<decltype(t)>(args, i / args.kv_heads, i % args.kv_heads,
                                    args.scratch + thread_number() * args.scratch_numel);
  });
}

void attention_decode(const DecodeArgs& args) {
  with_type(args.qkv.type, [&](auto t) {
    using T = decltype(t);
    const int64_t row = args.kv_heads * args.head_dim;
    for (int64_t b = 0; b < args.batch; ++b) {
      const T* kv = static_cast<const T*>(args.qkv.data) + b * (args.heads * args.head_dim + 2 * row) +
                    args.heads * args.head_dim;
      T* cache = static_cast<T*>(args.cache.data) + (b * args.capacity + args.position) * 2 * row;
      __builtin_memcpy(cache, kv, size_t(2 * row) * sizeof(T));
    }
    parallel_rows(args.batch * args.heads, args.position * args.head_dim,
                  [&](int64_t i) { decode_head<T>(args, i / args.heads, i % args.heads); });
  });
}

}  // namespace cleave::cpu::CLEAVE_ISA
