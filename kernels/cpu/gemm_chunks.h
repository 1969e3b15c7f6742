// Loop over the blocks of a product. Blocks of both operands are packed in the order of their use. Sums over
// k run in blocks of the body's kDepth, in order, so the result does not depend on the number of threads, and
// a row does not depend on other rows. The scheme follows Goto and van de Geijn, "Anatomy of high-performance
// matrix multiplication" (ACM TOMS 2008): a strip of a stays in the first-level cache; a block of b, packed
// by the thread that uses it, stays in the second-level cache.
//
// A body has
//   Packed                                     type of a packed element
//   kRows, kColumns                            of a strip of a; of a panel of b
//   kDepth, kDepthStep                         depth of a block of sums; step of a packed depth
//   kRowBlock, kColumnBlock                    maximum block of c per thread, in whole strips and panels
//   pack_a(out, x, stride, across, range)      packs whole strips, zero beyond the operand
//   pack_b(out, x, stride, across, range)      packs whole panels, zero beyond the operand
//   block(a, b, depth, target, rows, columns)  computes a block of c from packed strips and panels
#pragma once
#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Destination of a block's sums.
struct Target {
  float* c;
  int64_t stride;
  const float* bias;  // for the first block of sums, or null
  bool add;           // adds to the existing values
};

CLEAVE_INLINE int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

// Rounds a block: c = round(sums [+ c]).
template <class T>
static void round_block(T* c, int64_t stride, const float* sums, int64_t sums_stride, int64_t rows,
                        int64_t columns, bool add) {
  for (int64_t r = 0; r < rows; ++r, c += stride, sums += sums_stride)
    for_vectors(0, columns, [=](int64_t i, auto n) {
      const F16 sum = load(sums + i, n);
      store(c + i, add ? sum + load(c + i, n) : sum, n);
    });
}

// Number of jobs for the rows, at least `least_jobs`. Chosen so that all threads get equally many jobs, if
// this takes at most twice as many.
CLEAVE_INLINE int64_t row_jobs(int64_t least_jobs, int64_t b_jobs) {
  for (int64_t jobs = least_jobs; jobs <= 2 * least_jobs; ++jobs)
    if (jobs * b_jobs % team_threads() == 0) return jobs;
  return least_jobs;
}

// Rows [m0, m0 + kChunkRows) of c. All threads pack the chunk of a. Then each thread packs its next block of
// b, which stays in its second-level cache, and multiplies the chunk's rows by it.
template <class Body>
static void run_chunk(const GemmArgs& g, int64_t m0) {
  using Packed = typename Body::Packed;
  constexpr int64_t kRowBlock = Body::kRowBlock, kColumnBlock = Body::kColumnBlock, kDepth = Body::kDepth;
  static_assert(kRowBlock % Body::kRows == 0 && kColumnBlock % Body::kColumns == 0 &&
                kDepth % Body::kDepthStep == 0);
  static_assert(kDepth * kColumnBlock * int64_t(sizeof(Packed)) <= (kGemmThread - 16) * 4);
  const int64_t m = least(gemm_blocks::kChunkRows, g.m - m0);
  auto* a = reinterpret_cast<Packed*>(g.scratch);
  float* of_threads = g.scratch + gemm_chunk_floats(m, g.k);
  const int64_t strips = (m + Body::kRows - 1) / Body::kRows,
                b_jobs = (g.n + kColumnBlock - 1) / kColumnBlock;
  const int64_t a_jobs = row_jobs((m + kRowBlock - 1) / kRowBlock, b_jobs);
  const auto first_row = [=](int64_t job) { return least(job * strips / a_jobs * Body::kRows, m); };
  const bool fork = double(m) * double(g.n) * double(g.k) > 1e6;
  for (int thread = 0; thread < team_threads(); ++thread)
    *reinterpret_cast<int64_t*>(of_threads + thread * kGemmThread) = -1;
  for (int64_t k = 0; k < g.k; k += kDepth) {
    const int64_t terms = least(kDepth, g.k - k), depth = whole(terms, Body::kDepthStep);
    parallel_for(a_jobs, fork, [=](int64_t job) {
      const int64_t i = first_row(job);
      Body::pack_a(a + i * depth, g.a, g.a_stride, !g.transpose_a,
                   {m0 + i, m0 + first_row(job + 1), k, terms});
    });
    parallel_for(a_jobs * b_jobs, fork, [=](int64_t job, int thread) {
      const int64_t i = first_row(job % a_jobs), j = job / a_jobs * kColumnBlock;
      int64_t& packed = *reinterpret_cast<int64_t*>(of_threads + thread * kGemmThread);
      auto* b = reinterpret_cast<Packed*>(of_threads + thread * kGemmThread + 16);
      if (packed != k * b_jobs + job / a_jobs) {
        packed = k * b_jobs + job / a_jobs;
        Body::pack_b(b, g.b, g.b_stride, g.transpose_b, {j, least(j + kColumnBlock, g.n), k, terms});
      }
      const int64_t rows = first_row(job % a_jobs + 1) - i, columns = least(kColumnBlock, g.n - j);
      float* c = g.c + (m0 + i) * g.c_stride + j;
      const bool add = k > 0 || (g.accumulate && !g.rounded.data);
      Body::block(a + i * depth, b, depth, {c, g.c_stride, k == 0 && g.bias ? g.bias + j : nullptr, add},
                  rows, columns);
      if (g.rounded.data && k + terms == g.k)
        with_type(g.rounded.type, [&](auto t) {
          auto* y = static_cast<decltype(t)*>(g.rounded.data) + (m0 + i) * g.rounded_stride + j;
          round_block(y, g.rounded_stride, c, g.c_stride, rows, columns, g.accumulate);
        });
    });
  }
}

template <class Body>
CLEAVE_INLINE void run_chunks(const GemmArgs& g) {
  for (int64_t m0 = 0; m0 < g.m; m0 += gemm_blocks::kChunkRows) run_chunk<Body>(g, m0);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
