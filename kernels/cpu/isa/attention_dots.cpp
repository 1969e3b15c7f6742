// bf16 attention with vdpbf16ps of AVX512_BF16. Scores, sums and softmax are in fp32; weights and score
// gradients are rounded to bf16 for the next products, like the operands of GPU tensor cores.
#include "kernels/cpu/attention_backward.h"
#include "kernels/cpu/attention_forward.h"
#include "kernels/cpu/pairs.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

template <class Pairs>
struct PairBlocks : RegisterBlocks<Pairs> {
  using Pairs::elements, Pairs::rounded;
  using Stored = bf16;

  static void rows(uint32_t* out, const bf16* x, int64_t stride, int64_t valid, int64_t all, int64_t width) {
    const int64_t wide = padded(width);
    for (int64_t r = 0; r < all; ++r, out += wide / 2)
      for (int64_t i = 0; i < wide; i += 16)
        _mm256_storeu_si256(
            reinterpret_cast<__m256i*>(out + i / 2),
            _mm256_maskz_loadu_epi16(r < valid ? first_lanes(width - i) : __mmask16(0), x + r * stride + i));
  }
  static void across(uint32_t* out, const bf16* x, int64_t stride, int64_t valid, int64_t width) {
    pack_pairs_across<kKeys>(out, x, stride, valid, width);
  }
  static void along(uint32_t* out, const bf16* x, int64_t stride, int64_t valid, int64_t all, int64_t width) {
    const int64_t wide = padded(width), there = elements(valid) * wide;
    pack_pairs_along(out, x, stride, width, valid, wide);
    __builtin_memset(out + there, 0, size_t(elements(all) * wide - there) * 4);
  }
  CLEAVE_MEMBER Matrix<uint32_t> by_query(const float* block, uint32_t* room, int64_t queries) {
    for (int64_t i = 0; i < queries * kKeys; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(room + i / 2), rounded(load(block + i)));
    return {room, kKeys / 2};
  }
  CLEAVE_MEMBER Matrix<uint32_t> by_key(const float* block, uint32_t* room, int64_t queries) {
    for (int64_t q = 0; q < queries; q += 2)
      for (int64_t i = 0; i < kKeys; i += 16) {
        const float* at = block + q * kKeys + i;
        const __m512i low = _mm512_cvtepu16_epi32(rounded(load(at)));
        const __m512i high =
            q + 1 < queries ? _mm512_cvtepu16_epi32(rounded(load(at + kKeys))) : _mm512_setzero_si512();
        _mm512_storeu_si512(room + q / 2 * kKeys + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
    return {room, 1, kKeys};
  }
};

}  // namespace

void attention_dots(const AttentionArgs& args) { forward_heads<PairBlocks<Dot>>(args); }
void attention_grad_dots(const AttentionArgs& args) { backward_heads<PairBlocks<Dot>>(args); }
void attention_dots_by_model(const AttentionArgs& args) { forward_heads<PairBlocks<DotModel>>(args); }
void attention_grad_dots_by_model(const AttentionArgs& args) { backward_heads<PairBlocks<DotModel>>(args); }

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
