#include "benchmarks/kernels/ceilings.h"

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "device/memory.h"

namespace cleave::benchmarks {
namespace {

// Of the processor on one thread, which a busy machine does not disturb; else of the wall.
double seconds() {
  timespec t;
  clock_gettime(omp_get_max_threads() > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

constexpr int kChains = 12;
constexpr int64_t kRounds = 2'000'000;

// The operations done by one thread; the sum keeps the compiler from dropping them.
__attribute__((target("avx512f"))) double multiply_add_512(float* out) {
  __m512 a[kChains];
  for (__m512& x : a) x = _mm512_set1_ps(1.0f);
  const __m512 b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);
  for (int64_t k = 0; k < kRounds; ++k)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) a[i] = _mm512_fmadd_ps(a[i], b, c);
  for (const __m512& x : a) *out += _mm512_cvtss_f32(x);
  return double(kRounds) * kChains * 32;
}

double multiply_add_256(float* out) {
  __m256 a[kChains];
  for (__m256& x : a) x = _mm256_set1_ps(1.0f);
  const __m256 b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
  for (int64_t k = 0; k < kRounds; ++k)
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) a[i] = _mm256_fmadd_ps(a[i], b, c);
  for (const __m256& x : a) *out += _mm256_cvtss_f32(x);
  return double(kRounds) * kChains * 16;
}

double flop_rate() {
  const bool wide = __builtin_cpu_supports("avx512f");
  double best = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    double operations = 0;
    float sink = 0;
    const double begin = seconds();
#pragma omp parallel reduction(+ : operations, sink)
    operations += wide ? multiply_add_512(&sink) : multiply_add_256(&sink);
    best = std::max(best, sink < 0 ? 0 : operations / (seconds() - begin));
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings() {
  constexpr int64_t kNumel = 32 << 20;
  Memory memory;
  Buffer arrays[4];
  float* x[4];
  for (int i = 0; i < 4; ++i) {
    arrays[i] = memory.allocate(MemoryKind::host, Category::staging, DType::fp32, {kNumel}, "ceiling");
    x[i] = arrays[i].tensor().as<float>();
    std::fill(x[i], x[i] + kNumel, 1.0f);
  }
  Ceilings c{.flops = flop_rate()};
  for (int attempt = 0; attempt < 7; ++attempt) {
    double begin = seconds();
    float *p = x[0], *m = x[1], *v = x[2];
    const float* g = x[3];
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < kNumel; ++i) {
      m[i] = 0.9f * m[i] + g[i];
      v[i] = 0.9f * v[i] + g[i];
      p[i] = p[i] - m[i] * v[i] * 1e-9f;
    }
    c.update_bytes = std::max(c.update_bytes, 28.0 * kNumel / (seconds() - begin));
    float sum = 0;
    begin = seconds();
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < kNumel; ++i) sum += g[i];
    c.read_bytes = std::max(c.read_bytes, sum < 0 ? 0 : 4.0 * kNumel / (seconds() - begin));
  }
  return c;
}

}  // namespace cleave::benchmarks
