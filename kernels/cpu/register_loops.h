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

// FLOPs a second of the calling thread. Takes a quarter of a millisecond; a moment in which something else
// runs does not count.
double flops_of(const RegisterLoop& loop);

// Whether the CPU has tiles, oneDNN's limit allows them and the kernel gave this process their registers.
bool has_tiles();

}  // namespace cleave::kernels::cpu
