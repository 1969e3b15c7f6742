#include "kernels/cpu/register_loops.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"

namespace cleave::kernels::cpu {
namespace {

// Twelve independent sums hide the instruction latency of all known cores.
constexpr int kSums = 12;

void multiply_add_256(int64_t rounds) {
  __m256 sums[kSums];
  for (__m256& x : sums) x = _mm256_set1_ps(1.0f);
  const __m256 b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
  for (int64_t k = 0; k < rounds; ++k)
#pragma GCC unroll 12
    for (__m256& x : sums) {
      x = _mm256_fmadd_ps(x, b, c);
      asm volatile("" : "+x"(x));  // prevents hoisting out of the loop
    }
}

__attribute__((target("avx512f"))) void multiply_add_512(int64_t rounds) {
  __m512 sums[kSums];
  for (__m512& x : sums) x = _mm512_set1_ps(1.0f);
  const __m512 b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);
  for (int64_t k = 0; k < rounds; ++k)
#pragma GCC unroll 12
    for (__m512& x : sums) {
      x = _mm512_fmadd_ps(x, b, c);
      asm volatile("" : "+v"(x));
    }
}

__attribute__((target("avx512f,avx512bf16"))) void dot_bf16_512(int64_t rounds) {
  __m512 sums[kSums];
  for (__m512& x : sums) x = _mm512_set1_ps(1.0f);
  const auto b = __m512bh(_mm512_set1_epi16(0x3f80)), c = __m512bh(_mm512_set1_epi16(0x3000));
  for (int64_t k = 0; k < rounds; ++k)
#pragma GCC unroll 12
    for (__m512& x : sums) {
      x = _mm512_dpbf16_ps(x, b, c);
      asm volatile("" : "+v"(x));
    }
}

// Four tiles of sums, two of each operand: all eight tiles.
__attribute__((target("amx-tile,amx-bf16"))) void dot_bf16_tiles(int64_t rounds) {
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const shapes;
  alignas(64) const float values[256] = {};
  _tile_loadconfig(&shapes);
  _tile_loadd(4, values, 64);
  _tile_loadd(5, values, 64);
  _tile_loadd(6, values, 64);
  _tile_loadd(7, values, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < rounds; ++k) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

}  // namespace

bool has_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = onednn_ability().instructions.find("AMX") != std::string::npos &&
                              syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

RegisterLoop fp32_loop() {
  if (isa() == Isa::v4) return {"vfmadd", kSums * 32, multiply_add_512};
  return {"vfmadd", kSums * 16, multiply_add_256};
}

RegisterLoop bf16_loop() {
  if (has_tiles()) return {"tdpbf16ps", 4 * 16 * 16 * 32 * 2, dot_bf16_tiles};
  if (!onednn_ability().native_bf16 || isa() != Isa::v4) return fp32_loop();
  return {"vdpbf16ps", kSums * 64, dot_bf16_512};
}

}  // namespace cleave::kernels::cpu
