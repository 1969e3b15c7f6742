// Matrix products in fp32 from operands of any storage type. Blocks of both operands are converted and packed
// into the order in which the register tile reads them; the sums over k run in blocks of kDepth, in order, so
// the result does not depend on the number of threads. The scheme is that of Goto and van de Geijn, "Anatomy
// of high-performance matrix multiplication" (ACM TOMS 2008): a strip of a stays in the first-level cache, a
// block of b, packed by the thread that uses it, in the second.
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/transpose.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

using namespace gemm_blocks;

#ifdef __AVX512F__
constexpr int kRows = 12, kVectors = 2;  // 24 accumulators of 32 registers
#else
constexpr int kRows = 6, kVectors = 1;  // 12 accumulators of 16 registers
#endif
constexpr int kColumns = 16 * kVectors;

// One operand's elements in the order of its memory: rows of `stride`.
template <class T>
struct Source {
  const T* data;
  int64_t stride;
};

template <class T>
CLEAVE_INLINE float element(const T* p) {
  float lanes[16];
  store(lanes, load(p, Part{1}));
  return lanes[0];
}

// out[k * kWide + i] = x[i * stride + k]; rows from `valid` on are zero. Groups of four rows may overlap.
template <int kWide, class T>
void pack_across(float* out, Source<T> x, int64_t valid, int64_t depth) {
  const auto row = [=](int64_t i, int64_t k) { return i < valid ? load(x.data + i * x.stride + k) : zero(); };
  int64_t k = 0;
  for (; k + 16 <= depth; k += 16)
    for (int g = 0; g < (kWide + 3) / 4; ++g) {
      const int i = 4 * g + 4 <= kWide ? 4 * g : kWide - 4;
      store_transposed<kWide>(out + k * kWide + i, row(i, k), row(i + 1, k), row(i + 2, k), row(i + 3, k));
    }
  for (; k < depth; ++k)
    for (int i = 0; i < kWide; ++i)
      out[k * kWide + i] = i < valid ? element(x.data + i * x.stride + k) : 0.0f;
}

// out[k * kWide + i] = x[k * stride + i]; columns from `valid` on are zero.
template <int kWide, class T>
void pack_along(float* out, Source<T> x, int64_t valid, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    const T* row = x.data + k * x.stride;
    for (int i = 0; i < kWide; i += 16) {
      const int64_t rest = valid - i, room = kWide - i;
      const int lanes = int(rest < room ? rest : room);
      const F16 v = lanes >= 16 ? load(row + i) : lanes > 0 ? load(row + i, Part{lanes}) : zero();
      if (room >= 16)
        store(out + k * kWide + i, v);
      else
        store(out + k * kWide + i, v, Part{int(room)});
    }
  }
}

// The strips or panels [begin, end) of one operand at depth [k, k + depth), each kWide wide.
template <int kWide>
void pack(float* out, Vec x, int64_t stride, bool across, const PackRange& r) {
  with_type(x.type, [&](auto t) {
    using T = decltype(t);
    const T* data = static_cast<const T*>(x.data);
    for (int64_t i = r.begin; i < r.end; i += kWide, out += kWide * r.depth) {
      if (across)
        pack_across<kWide>(out, Source<T>{data + i * stride + r.k, stride}, r.end - i, r.depth);
      else
        pack_along<kWide>(out, Source<T>{data + r.k * stride + i, stride}, r.end - i, r.depth);
    }
  });
}

struct Target {
  float* c;
  int64_t stride;
  const float* bias;  // what the sums start from, or null
  bool add;
};

// One register tile: c (+)= a strip times b panel. The prefetches matter: both operands stream from the
// second-level cache, and c from memory.
CLEAVE_INLINE void tile(const float* a, const float* b, int64_t depth, Target t) {
  F16 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(t.c + r * t.stride + 16 * v, 1);
      sum[r][v] = t.bias ? load(t.bias + 16 * v) : zero();
    }
  for (int64_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(b + 8 * kColumns + 16 * v);
    __builtin_prefetch(a + 16 * kRows);
    F16 row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + 16 * v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(splat(a[r]), row[v], sum[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* c = t.c + r * t.stride + 16 * v;
      store(c, t.add ? sum[r][v] + load(c) : sum[r][v]);
    }
}

// A tile over the edge of c goes through a buffer, with the bits of one inside.
void edge_tile(const float* a, const float* b, int64_t depth, Target t, int64_t rows, int64_t columns) {
  float buffer[kRows * kColumns], bias[kColumns] = {};
  for (int64_t i = 0; t.bias && i < columns; ++i) bias[i] = t.bias[i];
  tile(a, b, depth, {buffer, kColumns, t.bias ? bias : nullptr, false});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < columns; ++i) {
      float& c = t.c[r * t.stride + i];
      const float sum = buffer[r * kColumns + i];
      c = t.add ? c + sum : sum;
    }
}

// The block of c at [rows] x [columns] of the chunk, from packed strips and panels.
void block(const float* a, const float* b, int64_t depth, Target t, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i += kRows)
    for (int64_t j = 0; j < columns; j += kColumns) {
      const Target at{t.c + i * t.stride + j, t.stride, t.bias ? t.bias + j : nullptr, t.add};
      const float *strip = a + i * depth, *panel = b + j * depth;
      if (i + kRows <= rows && j + kColumns <= columns)
        tile(strip, panel, depth, at);
      else
        edge_tile(strip, panel, depth, at, rows - i < kRows ? rows - i : kRows,
                  columns - j < kColumns ? columns - j : kColumns);
    }
}

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// c = round(sums [+ c]), a block of it.
template <class T>
void round_block(T* c, int64_t stride, const float* sums, int64_t sums_stride, int64_t rows, int64_t columns,
                 bool add) {
  for (int64_t r = 0; r < rows; ++r, c += stride, sums += sums_stride)
    for_vectors(0, columns, [=](int64_t i, auto n) {
      const F16 sum = load(sums + i, n);
      store(c + i, add ? sum + load(c + i, n) : sum, n);
    });
}

// Rows [m0, m0 + kChunkRows) of c. All threads pack the chunk of a; then each packs the block of b that it
// comes to, which stays in its second-level cache, and multiplies the chunk's rows by it.
void chunk(const GemmArgs& g, int64_t m0) {
  const int64_t m = least(kChunkRows, g.m - m0);
  float* a = g.scratch;
  float* of_threads = g.scratch + (least(kDepth, g.k) * ((m + kRows - 1) / kRows * kRows) + 15) / 16 * 16;
  const int64_t a_jobs = (m + kRowBlock - 1) / kRowBlock, b_jobs = (g.n + kColumnBlock - 1) / kColumnBlock;
  const bool fork = double(m) * double(g.n) * double(g.k) > 1e6;
  for (int thread = 0; thread < team_threads(); ++thread)
    *reinterpret_cast<int64_t*>(of_threads + thread * kGemmThread) = -1;
  for (int64_t k = 0; k < g.k; k += kDepth) {
    const int64_t depth = least(kDepth, g.k - k);
    parallel_for(a_jobs, fork, [=](int64_t job) {
      const int64_t i = job * kRowBlock;
      pack<kRows>(a + i * depth, g.a, g.a_stride, !g.transpose_a,
                  {m0 + i, m0 + least(i + kRowBlock, m), k, depth});
    });
    parallel_for(a_jobs * b_jobs, fork, [=](int64_t job, int thread) {
      const int64_t i = job % a_jobs * kRowBlock, j = job / a_jobs * kColumnBlock;
      int64_t& packed = *reinterpret_cast<int64_t*>(of_threads + thread * kGemmThread);
      float* b = of_threads + thread * kGemmThread + 16;
      if (packed != k * b_jobs + job / a_jobs) {
        packed = k * b_jobs + job / a_jobs;
        pack<kColumns>(b, g.b, g.b_stride, g.transpose_b, {j, least(j + kColumnBlock, g.n), k, depth});
      }
      const int64_t rows = least(kRowBlock, m - i), columns = least(kColumnBlock, g.n - j);
      float* c = g.c + (m0 + i) * g.c_stride + j;
      const bool add = k > 0 || (g.accumulate && !g.rounded.data);
      block(a + i * depth, b, depth, {c, g.c_stride, k == 0 && g.bias ? g.bias + j : nullptr, add}, rows,
            columns);
      if (g.rounded.data && k + depth == g.k)
        with_type(g.rounded.type, [&](auto t) {
          auto* y = static_cast<decltype(t)*>(g.rounded.data) + (m0 + i) * g.rounded_stride + j;
          round_block(y, g.rounded_stride, c, g.c_stride, rows, columns, g.accumulate);
        });
    });
  }
}

// c's elements [first, first + kRows) x [j] from rows of a and one row of b.
template <int kRows, class T>
CLEAVE_INLINE void thin_column(const GemmArgs& g, const float* a, const T* row, int64_t first, int64_t j) {
  F16 sum[kRows];
#pragma GCC unroll 4
  for (F16& s : sum) s = zero();
  for_vectors(0, g.k, [&](int64_t k, auto n) {
    const F16 x = load(row + k, n);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sum[r] = fma(load(a + (first + r) * g.a_stride + k, n), x, sum[r]);
  });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float& c = g.c[(first + r) * g.c_stride + j];
    c = sum_lanes(sum[r]) + (g.bias ? g.bias[j] : 0.0f) + (g.accumulate ? c : 0.0f);
  }
}

// A few rows of a against every row of b, which is read once: bound by memory, so nothing is packed.
template <class T>
void thin(const GemmArgs& g) {
  const float* a = static_cast<const float*>(g.a.data);
  const T* b = static_cast<const T*>(g.b.data);
  parallel_rows(g.n, g.k, [=](int64_t j) {
    const T* row = b + j * g.b_stride;
    int64_t i = 0;
    for (; i + 4 <= g.m; i += 4) thin_column<4>(g, a, row, i, j);
    switch (g.m - i) {
      case 1:
        return thin_column<1>(g, a, row, i, j);
      case 2:
        return thin_column<2>(g, a, row, i, j);
      case 3:
        return thin_column<3>(g, a, row, i, j);
      default:
        return;
    }
  });
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.m <= kThinRows && args.a.type == DType::fp32 && !args.transpose_a && args.transpose_b)
    return with_type(args.b.type, [&](auto t) { thin<decltype(t)>(args); });
  for (int64_t m0 = 0; m0 < args.m; m0 += kChunkRows) chunk(args, m0);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
