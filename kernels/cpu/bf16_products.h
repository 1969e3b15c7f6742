// How products of bf16 by bf16 go on this machine: the fastest of four ways, by what the CPU is and never
// by a clock, so that every run, every rank and every such machine decides the same and has the same bits.
#pragma once
#include <string>

namespace cleave::kernels::cpu {

struct GemmArgs;

enum class Bf16Way {
  as_fp32,  // the own product in fp32, operands converted while they are packed
  dots,     // the own product by vdpbf16ps
  tiles,    // the own product on the CPU's matrix unit
  onednn,
};

struct Bf16Products {
  Bf16Way way;
  std::string why;  // one sentence without its full stop
};

// Dots: where the CPU has no tiles, and vdpbf16ps has more FLOPs than fp32's multiply-add. Tiles: where the
// CPU has them and they give the bits of their model (tile_unit.h) on a drawn product; else oneDNN. Asked
// once.
const Bf16Products& bf16_products();

// The trial of tiles: whether this product of bf16 has the bits of v4::gemm_tiles_by_model. Needs AVX-512.
bool has_the_models_bits(void (*tiles)(const GemmArgs&));

}  // namespace cleave::kernels::cpu
