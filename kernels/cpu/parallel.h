// Loops over independent pieces of work on the calling thread's OpenMP team. Pieces do not depend on the
// number of threads, so neither do results.
#pragma once
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/simd.h"

#define CLEAVE_MEMBER [[gnu::always_inline]] static inline

namespace cleave::cpu::CLEAVE_ISA {

// Below this many elements a fork costs more than it brings.
inline constexpr int64_t kSerialNumel = 1 << 14;

// body(begin, end) for consecutive blocks of `block` elements.
template <class Body>
CLEAVE_INLINE void parallel_blocks(int64_t numel, int64_t block, Body body) {
  const int64_t blocks = (numel + block - 1) / block;
#pragma omp parallel for schedule(static) if (numel > kSerialNumel)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * block, end = begin + block < numel ? begin + block : numel;
    body(begin, end);
  }
}

// body(i, All or Part) for every vector of [0, numel).
template <class Body>
CLEAVE_INLINE void parallel_vectors(int64_t numel, Body body) {
  parallel_blocks(numel, 1 << 12, [=](int64_t begin, int64_t end) { for_vectors(begin, end, body); });
}

// body(row) for every row; `work` elements a row decide whether to fork.
template <class Body>
CLEAVE_INLINE void parallel_rows(int64_t rows, [[maybe_unused]] int64_t work, Body body) {
#pragma omp parallel for schedule(static) if (rows * work > kSerialNumel)
  for (int64_t row = 0; row < rows; ++row) body(row);
}

}  // namespace cleave::cpu::CLEAVE_ISA
