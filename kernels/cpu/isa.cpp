#include <cstdlib>
#include <string_view>

#include "kernels/cpu/bodies.h"

namespace cleave::cpu {

Isa isa() {
  static const Isa best = [] {
    const char* forced = std::getenv("CLEAVE_ISA");
    const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    return v4 && !(forced && std::string_view(forced) == "v3") ? Isa::v4 : Isa::v3;
  }();
  return best;
}

}  // namespace cleave::cpu
