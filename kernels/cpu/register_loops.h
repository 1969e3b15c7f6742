// Multiply-adds on registers alone: what a core's arithmetic does at most, and what tells a fast instruction
// from a slow one of the same name. (AVX512_BF16's vdpbf16ps does twice the FLOPs of fp32's multiply-add on
// Zen 4 and 5, and half of them on Intel's cores.)
#pragma once
#include <cstdint>

namespace cleave::kernels::cpu {

struct RegisterLoop {
  const char* instruction;  // "vfmadd"
  double flops;             // of a round, two for each multiply-add
  void (*run)(int64_t rounds);
};

// Of the instruction set that the bodies use (isa()).
RegisterLoop fp32_loop();
// Of the widest instruction that multiplies bf16 and adds up in fp32, within what ONEDNN_MAX_CPU_ISA leaves
// oneDNN; fp32's where there is none.
RegisterLoop bf16_loop();

// Whether oneDNN multiplies bf16 faster than fp32 is multiplied here: by a clear margin, so that every run
// and every such machine says the same. Takes half a millisecond; asked once.
bool bf16_is_faster();

}  // namespace cleave::kernels::cpu
