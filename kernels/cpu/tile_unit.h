// The matrix unit of AMX_TILE and AMX_BF16 (Intel SDM, volume 2, TDPBF16PS), and a scalar model with the same
// bits. The model tests bodies on CPUs without the unit, and validates a unit before its use. Both have eight
// tiles of 16 rows of 64 bytes; `dot` is
//   c[r][j] += even + odd,   even = sum over k of a[r][2k] b[k][2j],  odd = ... a[r][2k + 1] b[k][2j + 1]
// in fp32. One multiply-add adds each term, rounded to nearest even, with subnormal inputs and outputs as
// zero.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

struct TileUnit {
  CLEAVE_INLINE void begin() {
    struct alignas(64) Shapes {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shapes;
    _tile_loadconfig(&shapes);
  }
  CLEAVE_INLINE void end() { _tile_release(); }
  // Inline assembly instead of intrinsics, which require literal tile numbers.
  template <int kTile>
  CLEAVE_INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  CLEAVE_INLINE void load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kTile>
  CLEAVE_INLINE void store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  CLEAVE_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

class TileModel {
 public:
  static void begin() { std::memset(tiles_, 0, sizeof tiles_); }
  static void end() {}
  template <int kTile>
  static void clear() {
    std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
  }
  template <int kTile>
  static void load(const void* from, int64_t row_bytes) {
    for (int r = 0; r < 16; ++r)
      std::memcpy(tiles_[kTile][r], static_cast<const char*>(from) + r * row_bytes, 64);
  }
  template <int kTile>
  static void store(void* to, int64_t row_bytes) {
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * row_bytes, tiles_[kTile][r], 64);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    for (int r = 0; r < 16; ++r)
      for (int j = 0; j < 16; ++j) {
        float sums[2] = {0, 0};  // of even and of odd terms
        for (int k = 0; k < 16; ++k)
          for (int half = 0; half < 2; ++half)
            sums[half] = flushed(std::fma(flushed(number(tiles_[kA][r][k], half)),
                                          flushed(number(tiles_[kB][k][j], half)), sums[half]));
        float c;
        std::memcpy(&c, &tiles_[kC][r][j], 4);
        c = flushed(flushed(c) + flushed(sums[0] + sums[1]));
        std::memcpy(&tiles_[kC][r][j], &c, 4);
      }
  }

 private:
  static float number(uint32_t pair, int half) {
    const uint32_t bits = half ? pair & 0xffff0000u : pair << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  static float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

  static inline thread_local uint32_t tiles_[8][16][16];
};

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
