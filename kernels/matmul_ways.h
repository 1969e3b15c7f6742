// Reports the implementation of matrix products on this machine.
#pragma once
#include <string>
#include <vector>

#include "device/dtype.h"

namespace cleave::kernels {

struct MatmulWay {
  DType type;       // of both operands
  std::string way;  // "oneDNN 2.6.3 with AVX512_BF16", "own product with AVX2"
  std::string why;  // reason: one sentence without its full stop
};

// For fp32, bf16 and fp16. Throws Error(usage) like cpu::isa().
std::vector<MatmulWay> matmul_ways();

// "fp32: own product with AVX-512; bf16: ...". Processes with equal descriptions sum in the same order, and
// so have the same bits.
std::string describe_matmul_ways();

// Reason why matrix products cannot run on GPUs, with an action; empty if they can. Builds with CUDA only.
std::string gpu_matmul_problem();

}  // namespace cleave::kernels
