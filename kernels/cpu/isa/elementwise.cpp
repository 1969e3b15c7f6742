#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

struct D8 {  // eight doubles in two halves, so that both instruction sets add alike
  __m256d lo, hi;
};
CLEAVE_INLINE D8 widen(__m256 x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
CLEAVE_INLINE void add_to(D8& sum, D8 x, bool squares) {
  sum.lo = squares ? _mm256_fmadd_pd(x.lo, x.lo, sum.lo) : _mm256_add_pd(sum.lo, x.lo);
  sum.hi = squares ? _mm256_fmadd_pd(x.hi, x.hi, sum.hi) : _mm256_add_pd(sum.hi, x.hi);
}

constexpr int64_t kSumBlock = 4096;  // elements per addend of the total
constexpr int64_t kSumGroup = 1024;  // blocks in flight

template <class T, bool kSquares>
double block_sum(const T* x, int64_t begin, int64_t end) {
  const __m256d none = _mm256_setzero_pd();
  D8 even{none, none}, odd{none, none};
  for_vectors(begin, end, [&](int64_t i, auto n) {
    const F16 v = load(x + i, n);
    add_to(even, widen(low_half(v)), kSquares);
    add_to(odd, widen(high_half(v)), kSquares);
  });
  const __m256d four = _mm256_add_pd(_mm256_add_pd(even.lo, odd.lo), _mm256_add_pd(even.hi, odd.hi));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

template <class T, bool kSquares>
void total(const SumArgs& args) {
  const T* x = static_cast<const T*>(args.x.data);
  double sum = 0;
  double partial[kSumGroup];
  for (int64_t first = 0; first < args.numel; first += kSumBlock * kSumGroup) {
    const int64_t rest = args.numel - first;
    const int64_t numel = rest < kSumBlock * kSumGroup ? rest : kSumBlock * kSumGroup;
    parallel_blocks(numel, kSumBlock, [&](int64_t begin, int64_t end) {
      partial[begin / kSumBlock] = block_sum<T, kSquares>(x + first, begin, end);
    });
    for (int64_t b = 0; b * kSumBlock < numel; ++b) sum += partial[b];
  }
  *args.out = sum;
}

}  // namespace

void cast(const UnaryArgs& args) {
  with_type(args.x.type, [&](auto tx) {
    with_type(args.y.type, [&](auto ty) {
      const auto* x = static_cast<const decltype(tx)*>(args.x.data);
      auto* y = static_cast<decltype(ty)*>(args.y.data);
      parallel_vectors(args.numel, [=](int64_t i, auto n) { store(y + i, load(x + i, n), n); });
    });
  });
}

void axpy(const AxpyArgs& args) {
  with_type(args.x.type, [&](auto tx) {
    with_type(args.y.type, [&](auto ty) {
      const auto* x = static_cast<const decltype(tx)*>(args.x.data);
      auto* y = static_cast<decltype(ty)*>(args.y.data);
      const S16 alpha = splat(args.alpha);
      parallel_vectors(args.numel, [=](int64_t i, auto n) {
        store(y + i, fma(load(x + i, n), alpha, load(y + i, n)), n);
      });
    });
  });
}

void scale(const FactorArgs& args) {
  with_type(args.y.type, [&](auto t) {
    const auto* x = static_cast<const decltype(t)*>(args.x.data);
    auto* y = static_cast<decltype(t)*>(args.y.data);
    const S16 factor = splat(args.factor);
    parallel_vectors(args.numel, [=](int64_t i, auto n) { store(y + i, load(x + i, n) * factor, n); });
  });
}

void random_fill(const RandomArgs& args) {
  constexpr int64_t kBlock = 1024;
  const PhiloxKey key{args.seed, args.stream};
  const S16 scale = splat(args.scale);
  parallel_blocks(args.numel, kBlock, [=](int64_t begin, int64_t end) {
    int draws[kBlock + 128];  // floats, in element order
    const uint64_t first = args.first + uint64_t(begin);
    for (int64_t d = 0; d < end - begin + int64_t(first % 4); d += 64) {
      I16 w[4];
      philox_blocks(key, (first + uint64_t(d)) / 4, w);
      for (int i = 0; i < 4; i += 2) {
        if (args.normal) {
          const NormalPair pair = normal_pair(w[i], w[i + 1]);
          w[i] = bits_of(pair.cosine), w[i + 1] = bits_of(pair.sine);
        } else {
          for (int j = i; j < i + 2; ++j)
            w[j] = bits_of(fma(to_float(shift_right<8>(w[j])), 0x1p-23f, splat(-1.0f)));
        }
      }
      store_in_order(w, draws + d);
    }
    const int* mine = draws + first % 4;
    for_vectors(begin, end,
                [=](int64_t i, auto n) { store(args.y + i, scale * float_of(load(mine + (i - begin))), n); });
  });
}

void sum(const SumArgs& args) {
  with_type(args.x.type, [&](auto t) {
    using T = decltype(t);
    args.squares ? total<T, true>(args) : total<T, false>(args);
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
