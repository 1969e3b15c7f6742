// bf16 matrix products with fp32 sums on tiles of the CPU's matrix unit. Four tiles of c, 32 x 32, are summed
// at a time from two of a and two of b. Packed operands are consecutive whole tiles in the layout of the
// unit: 16 rows of 32 terms for a, 16 pairs of terms of 16 columns for b.
#include "kernels/cpu/gemm_chunks.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile_unit.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

constexpr int64_t kTerms = 32, kTileNumel = 16 * kTerms;  // bf16 elements per row of a tile; per tile

// Corner of an operand in memory: rows with distance `stride`. The tile starts at `data` and has `valid` rows
// or columns and `terms` terms, with zeros beyond.
struct Corner {
  const bf16* data;
  int64_t stride, valid, terms;
};

// For terms along memory rows: sixteen rows of sixteen pairs.
CLEAVE_INLINE void load_rows(__m512i (&r)[16], const Corner& x) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    r[i] = i < x.valid ? pairs_of_row(x.data + i * x.stride, x.terms) : _mm512_setzero_si512();
}

// For terms across memory rows: sixteen pairs of rows of sixteen.
CLEAVE_INLINE void load_pairs(__m512i (&r)[16], const Corner& x) {
  const __mmask16 lanes = first_lanes(x.valid);
  const auto row = [&](int64_t k) __attribute__((always_inline)) {
    const __mmask16 there = k < x.terms ? lanes : __mmask16(0);
    return _mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(there, k < x.terms ? x.data + k * x.stride : x.data));
  };
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_or_si512(row(2 * i), _mm512_slli_epi32(row(2 * i + 1), 16));
}

// Packs a tile. `turned`: the unit's layout is the transpose of the storage.
CLEAVE_INLINE void pack_tile(bf16* out, const Corner& x, bool across, bool turned) {
  __m512i r[16];
  across ? load_rows(r, x) : load_pairs(r, x);
  if (turned) turn(r);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * kTerms, r[i]);
}

// Packs strips or panels of two tiles, for rows or columns [begin, end): along the depth, with both tiles of
// a depth side by side.
CLEAVE_INLINE void pack_pairs(bf16* out, Vec x, int64_t stride, bool across, bool turned,
                              const gemm_blocks::PackRange& range) {
  const auto* data = static_cast<const bf16*>(x.data);
  for (int64_t i = range.begin; i < range.end; i += 32)
    for (int64_t k = 0; k < range.depth; k += kTerms)
      for (int64_t half = 0; half < 32; half += 16, out += kTileNumel) {
        const int64_t at = least(i + half, range.end - 1), term = range.k + k;
        pack_tile(out,
                  {across ? data + at * stride + term : data + term * stride + at, stride,
                   range.end - (i + half), range.depth - k},
                  across, turned);
      }
}

// Computes 32 x 32 of c from a strip and a panel.
template <class Unit>
CLEAVE_INLINE void quad(const bf16* a, const bf16* b, int64_t depth, float* c, int64_t stride, bool add) {
  const int64_t row = stride * 4;
  if (add) {
    Unit::template load<0>(c, row), Unit::template load<1>(c + 16, row);
    Unit::template load<2>(c + 16 * stride, row), Unit::template load<3>(c + 16 * stride + 16, row);
  } else {
    Unit::template clear<0>(), Unit::template clear<1>();
    Unit::template clear<2>(), Unit::template clear<3>();
  }
  for (int64_t k = 0; k < depth; k += kTerms, a += 2 * kTileNumel, b += 2 * kTileNumel) {
    Unit::template load<4>(a, 64), Unit::template load<6>(b, 64);
    Unit::template load<7>(b + kTileNumel, 64), Unit::template load<5>(a + kTileNumel, 64);
    Unit::template dot<0, 4, 6>(), Unit::template dot<1, 4, 7>();
    Unit::template dot<2, 5, 6>(), Unit::template dot<3, 5, 7>();
  }
  Unit::template store<0>(c, row), Unit::template store<1>(c + 16, row);
  Unit::template store<2>(c + 16 * stride, row), Unit::template store<3>(c + 16 * stride + 16, row);
}

CLEAVE_INLINE void copy(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows,
                        int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, to += to_stride, from += from_stride)
    for_vectors(0, columns, [=](int64_t j, auto n) { store(to + j, load(from + j, n), n); });
}

template <class Unit>
struct Tiles {
  using Packed = bf16;
  static constexpr int64_t kRows = 32, kColumns = 32, kDepth = 512, kDepthStep = kTerms;
  static constexpr int64_t kRowBlock = 256, kColumnBlock = 256;

  CLEAVE_MEMBER void pack_a(bf16* out, Vec x, int64_t stride, bool across, const gemm_blocks::PackRange& r) {
    pack_pairs(out, x, stride, across, !across, r);
  }
  CLEAVE_MEMBER void pack_b(bf16* out, Vec x, int64_t stride, bool across, const gemm_blocks::PackRange& r) {
    pack_pairs(out, x, stride, across, across, r);
  }

  // Computes a quad that crosses the edge of c through a buffer, with the same bits.
  CLEAVE_MEMBER void block(const bf16* a, const bf16* b, int64_t depth, Target t, int64_t rows,
                           int64_t columns) {
    Unit::begin();
    for (int64_t i = 0; i < rows; i += kRows)
      for (int64_t j = 0; j < columns; j += kColumns) {
        const bf16 *strip = a + i * depth, *panel = b + j * depth;
        float* c = t.c + i * t.stride + j;
        if (i + kRows <= rows && j + kColumns <= columns) {
          quad<Unit>(strip, panel, depth, c, t.stride, t.add);
          continue;
        }
        alignas(64) float buffer[kRows * kColumns] = {};
        const int64_t high = least(kRows, rows - i), wide = least(kColumns, columns - j);
        if (t.add) copy(buffer, kColumns, c, t.stride, high, wide);
        quad<Unit>(strip, panel, depth, buffer, kColumns, t.add);
        copy(c, t.stride, buffer, kColumns, high, wide);
      }
    Unit::end();
    for (int64_t i = 0; t.bias && i < rows; ++i)
      for_vectors(0, columns, [=](int64_t j, auto n) {
        float* c = t.c + i * t.stride + j;
        store(c, load(c, n) + load(t.bias + j, n), n);
      });
  }
};

}  // namespace

void gemm_tiles(const GemmArgs& args) { run_chunks<Tiles<TileUnit>>(args); }
void gemm_tiles_by_model(const GemmArgs& args) { run_chunks<Tiles<TileModel>>(args); }

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
