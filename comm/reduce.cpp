#include "comm/reduce.h"

#include <algorithm>
#include <type_traits>

namespace cleave::comm {
namespace {

// Sums blocks in a buffer that stays in the L1 cache. The compiler can vectorize because nothing aliases the
// buffer, and `out` may be a source because a block is written after all its sources are read.
constexpr int64_t kBlock = 1024;

template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, fp16> || std::is_same_v<T, bf16>, float,
                       std::conditional_t<std::is_same_v<T, int32_t>, uint32_t,
                                          std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>>>;

// Processes fp16 in steps of eight: compilers do not vectorize the scalar conversions.
template <class Each, class Rest>
void by_eight(int64_t n, Each each, Rest rest) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) each(i);
  for (; i < n; ++i) rest(i);
}

__m256 load8(const fp16* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }

template <class T, class A>
void load(A* acc, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, fp16>) {
    by_eight(
        n, [&](int64_t i) { _mm256_storeu_ps(acc + i, load8(x + i)); },
        [&](int64_t i) { acc[i] = to_float(x[i]); });
  } else if constexpr (std::is_same_v<T, bf16>) {
    for (int64_t i = 0; i < n; ++i) acc[i] = to_float(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) acc[i] = A(x[i]);
  }
}

template <class T, class A>
void add(A* acc, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, fp16>) {
    by_eight(
        n,
        [&](int64_t i) { _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), load8(x + i))); },
        [&](int64_t i) { acc[i] += to_float(x[i]); });
  } else if constexpr (std::is_same_v<T, bf16>) {
    for (int64_t i = 0; i < n; ++i) acc[i] += to_float(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) acc[i] += A(x[i]);
  }
}

template <class T, class A>
void store(T* out, const A* acc, int64_t n) {
  if constexpr (std::is_same_v<T, fp16>) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    by_eight(
        n,
        [&](int64_t i) {
          _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                           _mm256_cvtps_ph(_mm256_loadu_ps(acc + i), kNearest));
        },
        [&](int64_t i) { out[i] = from_float<fp16>(acc[i]); });
  } else if constexpr (std::is_same_v<T, bf16>) {
    for (int64_t i = 0; i < n; ++i) out[i] = from_float<bf16>(acc[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = T(acc[i]);
  }
}

template <class T>
void sum(T* out, std::span<const std::byte* const> sources, int64_t numel) {
  if constexpr (std::is_floating_point_v<T>) {
    if (sources.size() == 2) {
      const T* a = reinterpret_cast<const T*>(sources[0]);
      const T* b = reinterpret_cast<const T*>(sources[1]);
#pragma GCC ivdep
      for (int64_t i = 0; i < numel; ++i) out[i] = a[i] + b[i];
      return;
    }
  }
  alignas(64) Accumulator<T> acc[kBlock];
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    load(acc, reinterpret_cast<const T*>(sources[0]) + begin, n);
    for (size_t s = 1; s < sources.size(); ++s) add(acc, reinterpret_cast<const T*>(sources[s]) + begin, n);
    store(out + begin, acc, n);
  }
}

// Converts 16-bit floats to fp32, which keeps their order.
template <class T>
auto comparable(T x) {
  if constexpr (std::is_same_v<T, fp16> || std::is_same_v<T, bf16>)
    return to_float(x);
  else
    return x;
}

template <class T>
void largest(T* out, std::span<const std::byte* const> sources, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    T best = reinterpret_cast<const T*>(sources[0])[i];
    for (const std::byte* source : sources.subspan(1)) {
      const T x = reinterpret_cast<const T*>(source)[i];
      const auto b = comparable(best);
      if (comparable(x) > b || b != b) best = x;
    }
    out[i] = best;
  }
}

template <class T>
void reduce(Reduction how, void* out, std::span<const std::byte* const> sources, int64_t numel) {
  if (how == Reduction::max) return largest(static_cast<T*>(out), sources, numel);
  sum(static_cast<T*>(out), sources, numel);
}

}  // namespace

bool can_reduce(DType dtype) { return dtype != DType::uint16 && size_of(dtype) > 1; }

void reduce_in_order(Reduction how, DType dtype, void* out, std::span<const std::byte* const> sources,
                     int64_t numel) {
  switch (dtype) {
    case DType::fp32:
      return reduce<float>(how, out, sources, numel);
    case DType::fp64:
      return reduce<double>(how, out, sources, numel);
    case DType::fp16:
      return reduce<fp16>(how, out, sources, numel);
    case DType::bf16:
      return reduce<bf16>(how, out, sources, numel);
    case DType::int32:
      return reduce<int32_t>(how, out, sources, numel);
    case DType::int64:
      return reduce<int64_t>(how, out, sources, numel);
    case DType::uint16:
    case DType::uint8:
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      break;
  }
  fail(Exit::internal, "{} cannot be reduced", name_of(dtype));
}

}  // namespace cleave::comm
