// Matrix products by oneDNN, of both API generations, on team_threads() threads of its own. Primitives are
// made once for each distinct call and thread count.
// Version 2.6 gave the same fp32 bits on one and two threads for all nine shapes tried; the library does not
// promise that, so fp32 products use the packed product in isa/gemm.cpp, whose order of sums is fixed.
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
  int64_t a_stride;  // elements from a row of a as it is stored to the next; b and c are dense
  bool transpose_a, transpose_b, accumulate;
};

// What the library does on this machine, within what ONEDNN_MAX_CPU_ISA leaves it. Asked once; everything
// that depends on it follows from here.
struct OnednnAbility {
  std::string version;       // "2.6.3"
  std::string instructions;  // the best set that it uses, as ONEDNN_MAX_CPU_ISA names it
  bool native_bf16 = false;  // it multiplies bf16 by an instruction of the CPU's
};
const OnednnAbility& onednn_ability();

// Whether it has a product of this type at all, in hardware or not, with sums in fp32.
bool onednn_multiplies(DType type);

// The call for a product, without its bias.
OnednnGemm onednn_gemm_of(const Matmul& op);

// c = op(a) op(b) [+ bias] [+ c] with operands as Matmul describes them; m, n, k > 0. accumulate needs an
// fp32 c.
void onednn_gemm(const OnednnGemm& gemm);

}  // namespace cleave::kernels::cpu
