// Multiply-adds on registers alone: what a core's arithmetic does at most.
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

// Whether the CPU has tiles, oneDNN's limit allows them and the kernel gave this process their registers.
bool has_tiles();

}  // namespace cleave::kernels::cpu
