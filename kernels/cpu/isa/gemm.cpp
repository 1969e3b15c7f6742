// fp32 matrix products for operands of any storage type, which packing converts. A tile of c is summed in
// registers.
#include "kernels/cpu/gemm_registers.h"
#include "kernels/cpu/transpose.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

using namespace gemm_blocks;

// Elements of an operand in memory order: rows with distance `stride`.
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

// out[k * kWide + i] = x[k * stride + i]; columns from `valid` on are zero. If a row continues beyond the
// strip, stores a whole vector; the next depths overwrite its end.
template <int kWide, class T>
void pack_along(float* out, Source<T> x, int64_t valid, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    const T* row = x.data + k * x.stride;
    for (int i = 0; i < kWide; i += 16) {
      const int64_t rest = valid - i, room = kWide - i;
      const int lanes = int(rest < 16 ? rest : 16);
      const F16 v = lanes >= 16 ? load(row + i) : lanes > 0 ? load(row + i, Part{lanes}) : zero();
      if (room >= 16 || (lanes >= 16 && k * kWide + i + 16 <= depth * kWide))
        store(out + k * kWide + i, v);
      else
        store(out + k * kWide + i, v, Part{int(room)});
    }
  }
}

// Packs the strips or panels [begin, end) of one operand at depth [k, k + depth), each kWide wide.
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

struct Registers {
  using Packed = float;
  static constexpr int kRows = gemm_registers::kRows, kColumns = gemm_registers::kColumns;
  static constexpr int64_t kDepth = gemm_blocks::kDepth, kDepthStep = 1;
  static constexpr int64_t kRowBlock = 240, kColumnBlock = gemm_blocks::kColumnBlock;

  CLEAVE_MEMBER void pack_a(float* out, Vec x, int64_t stride, bool across, const PackRange& r) {
    pack<kRows>(out, x, stride, across, r);
  }
  CLEAVE_MEMBER void pack_b(float* out, Vec x, int64_t stride, bool across, const PackRange& r) {
    pack<kColumns>(out, x, stride, across, r);
  }
  CLEAVE_MEMBER void block(const float* a, const float* b, int64_t depth, Target t, int64_t rows,
                           int64_t columns) {
    multiply_block<MultiplyAdd>(a, b, depth, t, rows, columns);
  }
};

// Elements [first, first + kRows) x [j] of c from rows of a and one row of b.
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

// A few rows of a times every row of b, which is read once. Memory-bound, so nothing is packed.
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
  run_chunks<Registers>(args);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
