// Multiply-adds in registers only: the peak arithmetic rate of a core.
#pragma once
#include <cstdint>

namespace cleave::kernels::cpu {

struct RegisterLoop {
  const char* instruction;  // "vfmadd"
  double flops;             // per round, two for each multiply-add
  void (*run)(int64_t rounds);
};

// For the instruction set of the bodies (isa()).
RegisterLoop fp32_loop();
// For the widest instruction with bf16 products and fp32 sums, within oneDNN's limit ONEDNN_MAX_CPU_ISA;
// fp32_loop() if the CPU has none.
RegisterLoop bf16_loop();

// Returns true if the CPU has tiles, oneDNN's limit allows them, and the kernel granted their registers to
// this process.
bool has_tiles();

}  // namespace cleave::kernels::cpu
