#include "kernels/cpu/bf16_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "device/team.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/register_loops.h"
#include "kernels/cpu/scratch.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::cpu {
namespace {

// A bf16 product, [m, k] by transposed [n, k], of random values.
class Trial {
 public:
  Trial(int64_t m, int64_t n, int64_t k)
      : memory_((m * k + n * k) * 2 + m * n * 4), packed_(gemm_scratch(m, k, team_threads()) * 4) {
    auto* c = static_cast<std::byte*>(memory_.data());
    product_ = {.c = {c, DType::fp32, {m, n}},
                .a = {c + m * n * 4, DType::bf16, {m, k}},
                .b = {c + m * n * 4 + m * k * 2, DType::bf16, {n, k}},
                .transpose_b = true};
    draw(product_.a, 1), draw(product_.b, 2);
  }

  std::span<const float> by(void (*gemm)(const GemmArgs&)) {
    const Matmul& p = product_;
    gemm({.c = p.c.as<float>(),
          .rounded = {},
          .a = {p.a.raw(), DType::bf16},
          .b = {p.b.raw(), DType::bf16},
          .bias = nullptr,
          .c_stride = p.n(),
          .rounded_stride = 0,
          .a_stride = p.k(),
          .b_stride = p.k(),
          .m = p.m(),
          .n = p.n(),
          .k = p.k(),
          .transpose_a = false,
          .transpose_b = true,
          .accumulate = false,
          .scratch = packed_.floats()});
    return p.c.span<float>();
  }

 private:
  static void draw(const Tensor& y, uint64_t stream) {
    const Scratch drawn(y.numel() * 4);
    const Tensor x(drawn.data(), DType::fp32, y.shape());
    run(RandomFill{.y = x, .philox = {1, stream}});
    run(Cast{.y = y, .x = x});
  }

  Scratch memory_, packed_;
  Matmul product_;
};

// Reason why oneDNN does not multiply bf16 by a CPU instruction.
std::string without_instruction(const OnednnAbility& library) {
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* limit = std::getenv(variable); limit && __builtin_cpu_supports("avx512bf16"))
      return fmt::format("{}={} keeps oneDNN from the CPU's AVX512_BF16", variable, limit);
  return fmt::format("oneDNN finds {}, and multiplies bf16 in hardware from AVX512_BF16 on",
                     library.instructions);
}

// vdpbf16ps has twice the FLOPs of the fp32 multiply-add on AMD cores, and half of them on Intel cores. A
// table instead of a measurement, which momentary load could change: the implementations sum in different
// orders.
bool dots_are_fast() { return __builtin_cpu_is("amd"); }

Bf16Products decide() {
  const OnednnAbility& library = onednn_ability();
  if (!library.native_bf16)
    return {Bf16Way::as_fp32, without_instruction(library) + "; operands are multiplied as fp32"};
  const std::string in_hardware =
      fmt::format("the CPU multiplies bf16 in hardware, by {}", bf16_loop().instruction);
  if (has_tiles()) {
    if (isa() != Isa::v4) return {Bf16Way::onednn, in_hardware};
    if (has_the_models_bits(v4::gemm_tiles)) return {Bf16Way::tiles, in_hardware};
    return {Bf16Way::onednn, "the CPU's matrix unit adds up in another way than is documented"};
  }
  if (isa() != Isa::v4)
    return {Bf16Way::as_fp32, "AVX2 has no instruction for bf16; operands are multiplied as fp32"};
  if (dots_are_fast()) return {Bf16Way::dots, in_hardware};
  return {Bf16Way::as_fp32,
          "vdpbf16ps does not beat fp32's multiply-add on this CPU; operands are multiplied as fp32"};
}

}  // namespace

bool has_the_models_bits(void (*tiles)(const GemmArgs&)) {
  Trial trial(72, 104, 544);  // edges in both dims, and two blocks of sums
  const std::span<const float> sums = trial.by(tiles);
  const std::vector<float> kept(sums.begin(), sums.end());
  return std::ranges::equal(trial.by(v4::gemm_tiles_by_model), kept);
}

const Bf16Products& bf16_products() {
  static const Bf16Products products = decide();
  return products;
}

}  // namespace cleave::kernels::cpu
