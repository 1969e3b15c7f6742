// Which way matrix products go on this machine's CPU, for people who wonder about their speed.
#pragma once
#include <string>
#include <vector>

#include "device/dtype.h"

namespace cleave::kernels {

struct MatmulWay {
  DType type;       // of both operands
  std::string way;  // "oneDNN 2.6.3 with AVX512_BF16", "own product with AVX2"
  std::string why;  // one sentence without its full stop
};

// For fp32, bf16 and fp16. Error(usage) as cpu::isa().
std::vector<MatmulWay> matmul_ways();

// "fp32: own product with AVX-512; bf16: ...": equal in processes whose products and passes add up alike, and
// so have the same bits.
std::string describe_matmul_ways();

}  // namespace cleave::kernels
