// Matrix products with oneDNN (both API generations) on team_threads() threads of oneDNN. Primitives are
// cached per call and thread count. Version 2.6 returned the same fp32 bits on one and two threads for all
// nine tested shapes, but oneDNN does not guarantee this; so fp32 products use the packed product in
// isa/gemm.cpp, which has a fixed order of sums.
#pragma once
#include <cstdint>
#include <string>

#include "device/dtype.h"
#include "kernels/matmul.h"

namespace cleave::kernels::cpu {

struct OnednnGemm {
  void* c;
  const void *a, *b;
  const float* bias;  // n floats, or null
  DType c_type, a_type, b_type;
  int64_t m, n, k;
  int64_t a_stride;  // row stride of a as stored, in elements; b and c are dense
  bool transpose_a, transpose_b, accumulate;
};

// Capabilities of oneDNN on this machine, within the limit ONEDNN_MAX_CPU_ISA. Determined once.
struct OnednnAbility {
  std::string version;       // "2.6.3"
  std::string instructions;  // best instruction set in use, named as in ONEDNN_MAX_CPU_ISA
  bool native_bf16 = false;  // multiplies bf16 by a CPU instruction
};
const OnednnAbility& onednn_ability();

// Returns true if oneDNN supports products of this type with fp32 sums, in hardware or emulated.
bool onednn_multiplies(DType type);

// Call for a product without its bias.
OnednnGemm onednn_gemm_of(const Matmul& op);

// c = op(a) op(b) [+ bias] [+ c], operands as in Matmul; m, n, k > 0. accumulate needs an fp32 c.
void onednn_gemm(const OnednnGemm& gemm);

}  // namespace cleave::kernels::cpu
