// Products with sums in vector registers, for run_chunks: a block of kRows x kColumns of c from a strip of a
// and a panel of b, in steps of one element per row. The arithmetic defines the elements.
#pragma once
#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/gemm_chunks.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

namespace gemm_registers {
#ifdef __AVX512F__
inline constexpr int kRows = 12, kVectors = 2;  // 24 accumulators of 32 registers
#else
inline constexpr int kRows = 6, kVectors = 1;  // 12 accumulators of 16 registers
#endif
inline constexpr int kColumns = 16 * kVectors;
}  // namespace gemm_registers

// One register tile: c (+)= a strip times b panel. The prefetches matter, because both operands stream from
// the second-level cache and c from memory.
template <class Arithmetic>
CLEAVE_INLINE void register_tile(const typename Arithmetic::Element* a, const typename Arithmetic::Element* b,
                                 int64_t steps, Target t) {
  using namespace gemm_registers;
  F16 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(t.c + r * t.stride + 16 * v, 1);
      sum[r][v] = t.bias ? load(t.bias + 16 * v) : zero();
    }
  for (int64_t k = 0; k < steps; ++k, a += kRows, b += kColumns) {
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(b + 8 * kColumns + 16 * v);
    __builtin_prefetch(a + 16 * kRows);
    typename Arithmetic::Row row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = Arithmetic::row(b + 16 * v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Arithmetic::step(a[r], row[v], sum[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* c = t.c + r * t.stride + 16 * v;
      store(c, t.add ? sum[r][v] + load(c) : sum[r][v]);
    }
}

// Computes a tile that crosses the edge of c through a buffer, with the same bits.
template <class Arithmetic>
static void register_tile_at_edge(const typename Arithmetic::Element* a,
                                  const typename Arithmetic::Element* b, int64_t steps, Target t,
                                  int64_t rows, int64_t columns) {
  using namespace gemm_registers;
  float buffer[kRows * kColumns], bias[kColumns] = {};
  for (int64_t i = 0; t.bias && i < columns; ++i) bias[i] = t.bias[i];
  register_tile<Arithmetic>(a, b, steps, {buffer, kColumns, t.bias ? bias : nullptr, false});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < columns; ++i) {
      float& c = t.c[r * t.stride + i];
      const float sum = buffer[r * kColumns + i];
      c = t.add ? c + sum : sum;
    }
}

// Computes the block of c at [rows] x [columns] of the chunk, from packed strips and panels of `steps`
// elements per row.
template <class Arithmetic>
static void multiply_block(const typename Arithmetic::Element* a, const typename Arithmetic::Element* b,
                           int64_t steps, Target t, int64_t rows, int64_t columns) {
  using namespace gemm_registers;
  for (int64_t i = 0; i < rows; i += kRows)
    for (int64_t j = 0; j < columns; j += kColumns) {
      const Target at{t.c + i * t.stride + j, t.stride, t.bias ? t.bias + j : nullptr, t.add};
      const auto *strip = a + i * steps, *panel = b + j * steps;
      if (i + kRows <= rows && j + kColumns <= columns)
        register_tile<Arithmetic>(strip, panel, steps, at);
      else
        register_tile_at_edge<Arithmetic>(strip, panel, steps, at, least(kRows, rows - i),
                                          least(kColumns, columns - j));
    }
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
