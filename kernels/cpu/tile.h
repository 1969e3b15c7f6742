// Small matrix products in registers: c (+)= a b, [m, n] of [m, k] and [k, n]. The rows of b are contiguous
// and n is a multiple of 16. a is read by single elements, so it may have any strides, including a
// transposition.
#pragma once
#include "kernels/cpu/arithmetic.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Element (i, j) is data[i * row + j * column].
template <class Element>
struct Matrix {
  const Element* data;
  int64_t row, column = 1;
};

struct Result {
  float* data;
  int64_t row;
};

struct Sizes {
  int64_t m, n, k;  // k: elements per sum, as counted by the arithmetic
};

template <class Element>
struct Product {
  Result c;
  Matrix<Element> a, b;
  Sizes size;
  bool add;
};

#ifdef __AVX512F__
inline constexpr int kTileRows = 6, kTileVectors = 4;  // 24 accumulators of 32 registers
#else
inline constexpr int kTileRows = 6, kTileVectors = 1;  // 12 accumulators of 16 registers
#endif

template <class Arithmetic, int kRows, int kVectors>
CLEAVE_INLINE void tile(const Product<typename Arithmetic::Element>& p, int64_t i, int64_t j) {
  F16 sum[kRows][kVectors];
  const auto* a = p.a.data + i * p.a.row;
  const auto* b = p.b.data + j;
  float* c = p.c.data + i * p.c.row + j;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = p.add ? load(c + r * p.c.row + 16 * v) : zero();
  const int64_t a_row = p.a.row, a_column = p.a.column, b_row = p.b.row;
  for (int64_t k = p.size.k; k > 0; --k, a += a_column, b += b_row) {
    typename Arithmetic::Row row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = Arithmetic::row(b + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Arithmetic::step(a[r * a_row], row[v], sum[r][v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * p.c.row + 16 * v, sum[r][v]);
}

template <class Arithmetic, int kVectors>
CLEAVE_INLINE void tile_column(const Product<typename Arithmetic::Element>& p, int64_t j) {
  int64_t i = 0;
  for (; i + kTileRows <= p.size.m; i += kTileRows) tile<Arithmetic, kTileRows, kVectors>(p, i, j);
  switch (p.size.m - i) {
    case 1:
      return tile<Arithmetic, 1, kVectors>(p, i, j);
    case 2:
      return tile<Arithmetic, 2, kVectors>(p, i, j);
    case 3:
      return tile<Arithmetic, 3, kVectors>(p, i, j);
    case 4:
      return tile<Arithmetic, 4, kVectors>(p, i, j);
    case 5:
      return tile<Arithmetic, 5, kVectors>(p, i, j);
    default:
      return;
  }
}

template <class Arithmetic>
[[gnu::noinline]] static void run_product(const Product<typename Arithmetic::Element>& p) {
  int64_t j = 0;
  for (; j + 16 * kTileVectors <= p.size.n; j += 16 * kTileVectors)
    tile_column<Arithmetic, kTileVectors>(p, j);
  if constexpr (kTileVectors > 1) {
    switch ((p.size.n - j) / 16) {
      case 1:
        return tile_column<Arithmetic, 1>(p, j);
      case 2:
        return tile_column<Arithmetic, 2>(p, j);
      case 3:
        return tile_column<Arithmetic, 3>(p, j);
      default:
        return;
    }
  }
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
