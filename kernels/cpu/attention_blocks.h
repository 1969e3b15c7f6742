// Shared parts of attention forward and backward. Queries come in blocks of Blocks::kQueries, keys in blocks
// of kKeys. A block is packed once, so products run on contiguous rows for every storage type. Blocks defines
// packing and products:
//   Stored, Element                           type of operands in memory; packed
//   elements(terms)                           number of elements for this number of terms
//   whole_rows(n)                             rows of a left operand and of its product, for n rows
//   begin(), end()                            called around the products of a head
//   product(p)                                c (+)= a b (tile.h)
//   rows(out, x, stride, valid, all, width)   left operand: whole_rows(all) x elements(padded(width))
//   across(out, x, stride, valid, width)      right operand: kKeys columns = rows of x, over columns of x
//   along(out, x, stride, valid, all, width)  right operand: padded(width) columns, over `all` rows of x
//   by_query(block, room, queries)            left operand of queries x kKeys numbers, over keys
//   by_key(block, room, queries)              the transposed block, over queries
// x has `valid` rows with distance `stride`; operands are zero beyond them and beyond `width`. `room` holds
// kQueries x kKeys elements.
#pragma once
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vector_math.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

using attention_blocks::kKeys;
using attention_blocks::kMostQueries;
using attention_blocks::padded;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Takes consecutive pieces of a thread's scratch.
struct Carver {
  float* next;
  template <class Element = float>
  Element* take(int64_t numel) {
    static_assert(sizeof(Element) == sizeof(float));
    auto* p = reinterpret_cast<Element*>(next);
    next += (numel + 15) / 16 * 16;
    return p;
  }
};

// Converts rows x width of T at `x` (row stride `stride`) to fp32 rows of padded width; rows up to `all` are
// zero.
template <class T>
static void copy_rows(float* out, const T* x, int64_t stride, int64_t rows, int64_t all, int64_t width) {
  const int64_t wide = padded(width);
  for (int64_t r = 0; r < all; ++r) {
    float* to = out + r * wide;
    if (r < rows)
      for_vectors(0, width, [=](int64_t i, auto n) { store(to + i, load(x + r * stride + i, n)); });
    else
      for (int64_t i = 0; i < wide; i += 16) store(to + i, zero());
  }
}

// Transposes one block of kKeys rows: out[d * kKeys + key]; rows from `rows` on are zero.
template <class T>
static void copy_transposed(float* out, const T* x, int64_t stride, int64_t rows, int64_t width) {
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

// Common part of blocks with register products of an arithmetic.
template <class Arithmetic>
struct RegisterBlocks : Arithmetic {
  static constexpr int64_t kQueries = attention_blocks::kQueries;
  static constexpr int64_t whole_rows(int64_t n) { return n; }
  CLEAVE_MEMBER void begin() {}
  CLEAVE_MEMBER void end() {}
  CLEAVE_MEMBER void product(const Product<typename Arithmetic::Element>& p) { run_product<Arithmetic>(p); }
};

// Blocks of fp32 numbers.
template <class T>
struct FloatBlocks : RegisterBlocks<MultiplyAdd> {
  using Stored = T;
  static void rows(float* out, const T* x, int64_t stride, int64_t valid, int64_t all, int64_t width) {
    copy_rows(out, x, stride, valid, all, width);
  }
  static void across(float* out, const T* x, int64_t stride, int64_t valid, int64_t width) {
    copy_transposed(out, x, stride, valid, width);
  }
  static void along(float* out, const T* x, int64_t stride, int64_t valid, int64_t all, int64_t width) {
    copy_rows(out, x, stride, valid, all, width);
  }
  CLEAVE_MEMBER Matrix<float> by_query(const float* block, float*, int64_t) { return {block, kKeys}; }
  CLEAVE_MEMBER Matrix<float> by_key(const float* block, float*, int64_t) { return {block, 1, kKeys}; }
};

template <class T>
struct Head {
  const T *q, *k, *v;
  int64_t stride;  // of a row of qkv
};

template <class T>
CLEAVE_INLINE Head<T> head_of(const AttentionArgs& a, int64_t b, int64_t h) {
  const int64_t stride = (a.heads + 2 * a.kv_heads) * a.head_dim;
  const T* row = static_cast<const T*>(a.qkv.data) + b * a.seq * stride;
  const int64_t kv = h / (a.heads / a.kv_heads);
  return {row + h * a.head_dim, row + (a.heads + kv) * a.head_dim,
          row + (a.heads + a.kv_heads + kv) * a.head_dim, stride};
}

// First visible key of a query of sequence b; non-decreasing in the query.
CLEAVE_INLINE int64_t first_key(const AttentionArgs& a, int64_t b, int64_t query) {
  const int64_t in_window = a.window && query >= a.window ? query - a.window + 1 : 0;
  const int64_t in_document = a.documents ? a.documents[b * a.seq + query] : 0;
  return in_window > in_document ? in_window : in_document;
}

CLEAVE_INLINE int64_t last_key(const AttentionArgs& a, int64_t query) { return a.causal ? query : a.seq - 1; }

// c = a b and c += a b.
template <class Blocks, class Element = typename Blocks::Element>
CLEAVE_INLINE void multiply(Result c, Matrix<Element> a, Matrix<Element> b, Sizes size) {
  Blocks::product({c, a, b, size, false});
}
template <class Blocks, class Element = typename Blocks::Element>
CLEAVE_INLINE void multiply_add(Result c, Matrix<Element> a, Matrix<Element> b, Sizes size) {
  Blocks::product({c, a, b, size, true});
}

// Masks the scores of 16 keys from `key` on with minus infinity, except keys first .. last.
CLEAVE_INLINE F16 visible(F16 score, int64_t first, int64_t last, int64_t key) {
  const int64_t hidden = first - key,
                seen = last - key + 1;  // hidden lanes before the first key; lanes up to the last
  const S16 never = splat(-__builtin_inff());
  if (hidden > 0) score = select(lane_index() < splat(float(hidden)), never, score);
  if (seen >= 16) return score;
  return select(lane_index() < splat(float(seen)), score, never);
}

// Caps scores: `scale` converts them to the units of the cap. A separate function, so that the loops of
// attention keep their registers.
[[gnu::noipa]] static void cap_scores(float* scores, int64_t count, float scale, float cap) {
  const S16 whole = splat(cap), inverse = splat(scale / cap);
  for (int64_t i = 0; i < count; i += 16) store(scores + i, tanh(load(scores + i) * inverse) * whole);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
