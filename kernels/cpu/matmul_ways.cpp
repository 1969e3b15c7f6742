#include "kernels/matmul_ways.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/environment.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/register_loops.h"

namespace cleave::kernels {
namespace {

std::string own_way() {
  const bool forced = !environment_value("CLEAVE_ISA").empty();
  return fmt::format("own product with {}{}", cpu::isa() == cpu::Isa::v4 ? "AVX-512" : "AVX2",
                     forced ? " (CLEAVE_ISA)" : "");
}

// Why bf16 is not oneDNN's.
std::string without_bf16(const cpu::OnednnAbility& library) {
  for (const char* variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* limit = std::getenv(variable); limit && __builtin_cpu_supports("avx512bf16"))
      return fmt::format("{}={} keeps oneDNN from the CPU's AVX512_BF16", variable, limit);
  return fmt::format("oneDNN finds {}, and multiplies bf16 in hardware from AVX512_BF16 on",
                     library.instructions);
}

}  // namespace

std::vector<MatmulWay> matmul_ways() {
  const cpu::OnednnAbility& library = cpu::onednn_ability();
  const std::string own = own_way();
  MatmulWay bf16{DType::bf16, own, without_bf16(library) + "; operands are multiplied as fp32"};
  if (library.native_bf16)
    bf16.why = fmt::format(
        "{} multiplies slower than fp32's multiply-add on this CPU; operands are multiplied as fp32",
        cpu::bf16_loop().instruction);
  if (cpu::bf16_is_faster())
    bf16 = {DType::bf16, fmt::format("oneDNN {} with {}", library.version, library.instructions),
            fmt::format("the CPU multiplies bf16 in hardware, by {}", cpu::bf16_loop().instruction)};
  return {
      {DType::fp32, own, "its sums have one order on any number of threads, which oneDNN does not promise"},
      bf16,
      {DType::fp16, own,
       "operands are multiplied as fp32; no instruction here multiplies fp16 into fp32 sums"}};
}

}  // namespace cleave::kernels
