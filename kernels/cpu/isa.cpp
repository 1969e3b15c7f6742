#include "core/environment.h"
#include "core/error.h"
#include "kernels/cpu/bodies.h"

namespace cleave::kernels::cpu {
namespace {

bool has_v4() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

Isa isa() {
  static const Isa chosen = [] {
    const std::string wanted = environment_value("CLEAVE_ISA");
    require(
        wanted != "v4" || has_v4(), Exit::usage,
        "CLEAVE_ISA: v4 is not supported, this CPU has no AVX-512 (F, BW, CD, DQ, VL); set v3 or unset it");
    return wanted == "v3" || !has_v4() ? Isa::v3 : Isa::v4;
  }();
  return chosen;
}

}  // namespace cleave::kernels::cpu
