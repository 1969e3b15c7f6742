#include "kernels/matmul_ways.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/environment.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"

namespace cleave::kernels {
namespace {

std::string own_way() {
  return fmt::format("own product with {}", cpu::isa() == cpu::Isa::v4 ? "AVX-512" : "AVX2");
}

}  // namespace

std::vector<MatmulWay> matmul_ways() {
  const cpu::OnednnAbility& library = cpu::onednn_ability();
  const std::string own = own_way();
  const cpu::Bf16Products& bf16 = cpu::bf16_products();
  const auto way_of_bf16 = [&]() -> std::string {
    switch (bf16.way) {
      case cpu::Bf16Way::as_fp32:
        return own;
      case cpu::Bf16Way::onednn:
        return fmt::format("oneDNN {} with {}", library.version, library.instructions);
      case cpu::Bf16Way::dots:
        return "own product with AVX512_BF16";
      case cpu::Bf16Way::tiles:
        return "own product with AMX";
    }
    std::abort();
  };
  const std::string asked = environment_value("CLEAVE_ISA");
  const std::string forced = asked.empty() ? "" : fmt::format("CLEAVE_ISA={}; ", asked);
  return {{DType::fp32, own,
           forced + "its sums have one order on any number of threads, which oneDNN does not promise"},
          {DType::bf16, way_of_bf16(), forced + bf16.why},
          {DType::fp16, own,
           forced + "operands are multiplied as fp32; no instruction here multiplies fp16 into fp32 sums"}};
}

std::string describe_matmul_ways() {
  std::string ways;
  for (const MatmulWay& w : matmul_ways())
    ways += fmt::format("{}{}: {}", ways.empty() ? "" : "; ", name_of(w.type), w.way);
  return ways;
}

}  // namespace cleave::kernels
