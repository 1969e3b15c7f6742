// Selects the implementation of bf16 x bf16 products: the fastest of four for the CPU model. The choice uses
// no timings, so every run, rank and equal machine chooses alike and has the same bits.
#pragma once
#include <string>

namespace cleave::kernels::cpu {

struct GemmArgs;

enum class Bf16Way {
  as_fp32,  // own fp32 product; operands are converted while packed
  dots,     // own product with vdpbf16ps
  tiles,    // own product on the CPU's matrix unit
  onednn,
};

struct Bf16Products {
  Bf16Way way;
  std::string why;  // reason: one sentence without its full stop
};

// Returns dots if the CPU has no tiles and its vdpbf16ps has more FLOPs than its fp32 multiply-add; tiles if
// the CPU has them and a trial on random values matches the bits of their model (tile_unit.h); else oneDNN.
// Decides once.
const Bf16Products& bf16_products();

// Trial of tiles: returns true if a bf16 product has the bits of v4::gemm_tiles_by_model. Needs AVX-512.
bool has_the_models_bits(void (*tiles)(const GemmArgs&));

}  // namespace cleave::kernels::cpu
