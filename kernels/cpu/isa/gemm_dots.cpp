// bf16 matrix products with fp32 sums by vdpbf16ps of AVX512_BF16, which adds the products of two pairs of
// terms to each of sixteen sums. Packed operands are those of the fp32 product with pairs of terms in place
// of numbers.
#include "kernels/cpu/gemm_registers.h"
#include "kernels/cpu/pairs.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

// Packs the strips or panels [begin, end) of one operand at depth [k, k + depth), each kWide wide.
template <int kWide>
CLEAVE_INLINE void pack(bf16* packed, Vec x, int64_t stride, bool across, const gemm_blocks::PackRange& r) {
  const auto* data = static_cast<const bf16*>(x.data);
  auto* out = reinterpret_cast<uint32_t*>(packed);
  for (int64_t i = r.begin; i < r.end; i += kWide, out += kWide * PairsOfTerms::elements(r.depth)) {
    if (across)
      pack_pairs_across<kWide>(out, data + i * stride + r.k, stride, r.end - i, r.depth);
    else
      pack_pairs_along(out, data + r.k * stride + i, stride, r.end - i, r.depth, kWide);
  }
}

template <class Arithmetic>
struct Pairs {
  using Packed = bf16;
  static constexpr int kRows = gemm_registers::kRows, kColumns = gemm_registers::kColumns;
  static constexpr int64_t kDepth = 2 * gemm_blocks::kDepth, kDepthStep = 2;
  static constexpr int64_t kRowBlock = 240, kColumnBlock = gemm_blocks::kColumnBlock;

  CLEAVE_MEMBER void pack_a(bf16* out, Vec x, int64_t stride, bool across, const gemm_blocks::PackRange& r) {
    pack<kRows>(out, x, stride, across, r);
  }
  CLEAVE_MEMBER void pack_b(bf16* out, Vec x, int64_t stride, bool across, const gemm_blocks::PackRange& r) {
    pack<kColumns>(out, x, stride, across, r);
  }
  CLEAVE_MEMBER void block(const bf16* a, const bf16* b, int64_t depth, Target t, int64_t rows,
                           int64_t columns) {
    multiply_block<Arithmetic>(reinterpret_cast<const uint32_t*>(a), reinterpret_cast<const uint32_t*>(b),
                               depth / 2, t, rows, columns);
  }
};

}  // namespace

void gemm_dots(const GemmArgs& args) { run_chunks<Pairs<Dot>>(args); }
void gemm_dots_by_model(const GemmArgs& args) { run_chunks<Pairs<DotModel>>(args); }

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
