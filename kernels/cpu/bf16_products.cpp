#include "kernels/cpu/bf16_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "core/environment.h"
#include "device/team.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/register_loops.h"

namespace cleave::kernels::cpu {
namespace {

constexpr double kClearly = 1.25;  // ratios of instructions that exist are 0.5, 2, and 8 and more

// One product of bf16, [m, k] by [n, k] turned, with all that its calls need.
class Trial {
 public:
  Trial(int64_t m, int64_t n, int64_t k) : m_(m), n_(n), k_(k) {
    uint32_t state = 1;
    for (auto* operand : {&a_, &b_}) {
      operand->resize(size_t((operand == &a_ ? m : n) * k));
      for (uint16_t& x : *operand) {
        state = state * 1664525u + 1013904223u;
        x = uint16_t((state >> 16 & 0x807f) | (0x3e80 + (state >> 8 & 0x180)));  // 1/4 to 4, both signs
      }
    }
    scratch_.resize(size_t(gemm_scratch(m, k, team_threads()) + 16));
  }

  std::vector<float> own(void (*gemm)(const GemmArgs&)) {
    std::vector<float> c(size_t(m_ * n_));
    const auto address = reinterpret_cast<uintptr_t>(scratch_.data());
    gemm({.c = c.data(),
          .rounded = {},
          .a = {a_.data(), DType::bf16},
          .b = {b_.data(), DType::bf16},
          .bias = nullptr,
          .c_stride = n_,
          .rounded_stride = 0,
          .a_stride = k_,
          .b_stride = k_,
          .m = m_,
          .n = n_,
          .k = k_,
          .transpose_a = false,
          .transpose_b = true,
          .accumulate = false,
          .scratch = reinterpret_cast<float*>((address + 63) / 64 * 64)});
    return c;
  }

  void library() {
    std::vector<float> c(size_t(m_ * n_));
    onednn_gemm({.c = c.data(),
                 .a = a_.data(),
                 .b = b_.data(),
                 .bias = nullptr,
                 .c_type = DType::fp32,
                 .a_type = DType::bf16,
                 .b_type = DType::bf16,
                 .m = m_,
                 .n = n_,
                 .k = k_,
                 .a_stride = k_,
                 .transpose_a = false,
                 .transpose_b = true,
                 .accumulate = false});
  }

 private:
  int64_t m_, n_, k_;
  std::vector<uint16_t> a_, b_;
  std::vector<float> scratch_;
};

double seconds_of(const std::function<void()>& run) {
  double best = 1e30;
  for (int attempt = 0; attempt < 7; ++attempt) {
    timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    run();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    best = std::min(best, double(end.tv_sec - begin.tv_sec) + 1e-9 * double(end.tv_nsec - begin.tv_nsec));
  }
  return best;
}

bool unit_is_its_model() {
  Trial trial(72, 104, 544);  // edges both ways, and two blocks of sums
  return trial.own(v4::gemm_tiles) == trial.own(v4::gemm_tiles_by_model);
}

// Of a block's product, on this thread alone.
double library_over_tiles() {
  const int threads = team_threads();
  set_team_threads(1);
  Trial trial(512, 768, 768);
  const double tiles = seconds_of([&] { trial.own(v4::gemm_tiles); });
  const double library = seconds_of([&] { trial.library(); });
  set_team_threads(threads);
  return library / tiles;
}

// Why oneDNN does not multiply bf16 by an instruction of the CPU's.
std::string without_instruction(const OnednnAbility& library) {
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* limit = std::getenv(variable); limit && __builtin_cpu_supports("avx512bf16"))
      return fmt::format("{}={} keeps oneDNN from the CPU's AVX512_BF16", variable, limit);
  return fmt::format("oneDNN finds {}, and multiplies bf16 in hardware from AVX512_BF16 on",
                     library.instructions);
}

Bf16Products decide() {
  const OnednnAbility& library = onednn_ability();
  if (!library.native_bf16)
    return {Bf16Way::as_fp32, without_instruction(library) + "; operands are multiplied as fp32"};
  const char* instruction = bf16_loop().instruction;
  if (flops_of(bf16_loop()) <= kClearly * flops_of(fp32_loop()))
    return {
        Bf16Way::as_fp32,
        fmt::format("{} is no faster than fp32's multiply-add on this CPU; operands are multiplied as fp32",
                    instruction)};
  if (isa() != Isa::v4 || !has_tiles())
    return {Bf16Way::onednn, fmt::format("the CPU multiplies bf16 in hardware, by {}", instruction)};
  if (!unit_is_its_model())
    return {Bf16Way::onednn, "the CPU's matrix unit adds up in another way than is documented"};
  const double ratio = library_over_tiles();
  if (ratio * kClearly < 1)
    return {Bf16Way::onednn,
            fmt::format("it takes {:.2f} of the own product's time on the CPU's matrix unit", ratio)};
  return {Bf16Way::tiles, fmt::format("the CPU multiplies bf16 in hardware, by {}", instruction)};
}

}  // namespace

const Bf16Products& bf16_products() {
  static const Bf16Products products = decide();
  return products;
}

}  // namespace cleave::kernels::cpu
