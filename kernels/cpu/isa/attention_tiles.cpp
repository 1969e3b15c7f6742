// bf16 attention on tiles of the CPU's matrix unit. Scores, sums and softmax are in fp32; weights and score
// gradients are rounded to bf16 for the next products, like the operands of GPU tensor cores. Left operands
// are rows of pairs of terms, right operands are pairs of columns, both in the memory layout of the unit; the
// rest of a partial tile is zero.
#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile_unit.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

constexpr int64_t kSide = 16;  // rows, columns and pairs of terms of a tile

// kHigh x kWide tiles of c, summed at the same time.
template <class Unit, int kHigh, int kWide>
CLEAVE_INLINE void tiles_of_c(const Product<uint32_t>& p, int64_t i, int64_t j) {
  const uint32_t *a = p.a.data + i * p.a.row, *b = p.b.data + j;
  float* c = p.c.data + i * p.c.row + j;
  const int64_t row = p.c.row * 4, a_row = p.a.row * 4, b_row = p.b.row * 4;
  const auto each = [&](auto tile) __attribute__((always_inline)) {
    tile.template operator()<0>(c);
    if constexpr (kWide > 1) tile.template operator()<1>(c + kSide);
    if constexpr (kHigh > 1) tile.template operator()<2>(c + kSide * p.c.row);
    if constexpr (kHigh > 1 && kWide > 1) tile.template operator()<3>(c + kSide * p.c.row + kSide);
  };
  each([&]<int kTile>(float* at) __attribute__((always_inline)) {
    p.add ? Unit::template load<kTile>(at, row) : Unit::template clear<kTile>();
  });
  for (int64_t k = 0; k < p.size.k; k += kSide, a += kSide, b += kSide * p.b.row) {
    Unit::template load<4>(a, a_row), Unit::template load<6>(b, b_row);
    Unit::template dot<0, 4, 6>();
    if constexpr (kWide > 1) Unit::template load<7>(b + kSide, b_row), Unit::template dot<1, 4, 7>();
    if constexpr (kHigh > 1) {
      Unit::template load<5>(a + kSide * p.a.row, a_row), Unit::template dot<2, 5, 6>();
      if constexpr (kWide > 1) Unit::template dot<3, 5, 7>();
    }
  }
  each([&]<int kTile>(float* at) __attribute__((always_inline)) { Unit::template store<kTile>(at, row); });
}

template <class Unit>
[[gnu::noinline]] static void run_tiles(const Product<uint32_t>& p) {
  for (int64_t i = 0; i < p.size.m; i += 2 * kSide)
    for (int64_t j = 0; j < p.size.n; j += 2 * kSide) {
      const bool high = p.size.m - i > kSide, wide = p.size.n - j > kSide;
      if (high && wide)
        tiles_of_c<Unit, 2, 2>(p, i, j);
      else if (high)
        tiles_of_c<Unit, 2, 1>(p, i, j);
      else if (wide)
        tiles_of_c<Unit, 1, 2>(p, i, j);
      else
        tiles_of_c<Unit, 1, 1>(p, i, j);
    }
}

template <class Unit, class Rounding>
struct TileBlocks {
  using Stored = bf16;
  using Element = uint32_t;
  static constexpr int64_t kQueries = kMostQueries, kPairs = kQueries / 2;
  static constexpr int64_t elements(int64_t terms) { return (terms + 2 * kSide - 1) / (2 * kSide) * kSide; }
  static constexpr int64_t whole_rows(int64_t n) { return (n + kQueries - 1) / kQueries * kQueries; }
  CLEAVE_MEMBER void begin() { Unit::begin(); }
  CLEAVE_MEMBER void end() { Unit::end(); }
  CLEAVE_MEMBER void product(const Product<uint32_t>& p) { run_tiles<Unit>(p); }

  static void rows(uint32_t* out, const bf16* x, int64_t stride, int64_t valid, int64_t all, int64_t width) {
    const int64_t pairs = elements(padded(width));
    for (int64_t r = 0; r < whole_rows(all); ++r, out += pairs)
      for (int64_t i = 0; i < pairs; i += kSide)
        _mm512_storeu_si512(out + i, r < valid && 2 * i < width
                                         ? pairs_of_row(x + r * stride + 2 * i, width - 2 * i)
                                         : _mm512_setzero_si512());
  }
  static void across(uint32_t* out, const bf16* x, int64_t stride, int64_t valid, int64_t width) {
    pack_pairs_across<kKeys>(out, x, stride, valid, width);
    clear(out, (width + 1) / 2 * kKeys, elements(width) * kKeys);
  }
  static void along(uint32_t* out, const bf16* x, int64_t stride, int64_t valid, int64_t all, int64_t width) {
    const int64_t wide = padded(width);
    pack_pairs_along(out, x, stride, width, valid, wide);
    clear(out, (valid + 1) / 2 * wide, elements(all) * wide);
  }
  CLEAVE_MEMBER Matrix<uint32_t> by_query(const float* block, uint32_t* room, int64_t queries) {
    for (int64_t i = 0; i < queries * kKeys; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(room + i / 2), Rounding::rounded(load(block + i)));
    clear(room, queries * kKeys / 2, kQueries * kKeys / 2);
    return {room, kKeys / 2};
  }
  CLEAVE_MEMBER Matrix<uint32_t> by_key(const float* block, uint32_t* room, int64_t queries) {
    for (int64_t key = 0; key < kKeys; key += kSide)
      for (int64_t pair = 0; pair < elements(queries); pair += kSide) {
        __m512i r[kSide];
        for (int64_t i = 0; i < kSide; ++i) r[i] = two_rows(block + key, 2 * (pair + i), queries);
        turn(r);
        for (int64_t i = 0; i < kSide; ++i) _mm512_storeu_si512(room + (key + i) * kPairs + pair, r[i]);
      }
    return {room, kPairs};
  }

 private:
  CLEAVE_MEMBER void clear(uint32_t* out, int64_t from, int64_t to) {
    __builtin_memset(out + from, 0, size_t(to - from) * 4);
  }
  // Pairs of the rows `query` and `query + 1` of a block, in sixteen columns.
  CLEAVE_MEMBER __m512i two_rows(const float* column, int64_t query, int64_t queries) {
    const auto row = [=](int64_t q) __attribute__((always_inline)) {
      return q < queries ? _mm512_cvtepu16_epi32(Rounding::rounded(load(column + q * kKeys)))
                         : _mm512_setzero_si512();
    };
    return _mm512_or_si512(row(query), _mm512_slli_epi32(row(query + 1), 16));
  }
};

using OnUnit = TileBlocks<TileUnit, Dot>;
using OnModel = TileBlocks<TileModel, DotModel>;

}  // namespace

void attention_tiles(const AttentionArgs& args) { forward_heads<OnUnit>(args); }
void attention_grad_tiles(const AttentionArgs& args) { backward_heads<OnUnit>(args); }
void attention_tiles_by_model(const AttentionArgs& args) { forward_heads<OnModel>(args); }
void attention_grad_tiles_by_model(const AttentionArgs& args) { backward_heads<OnModel>(args); }

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
