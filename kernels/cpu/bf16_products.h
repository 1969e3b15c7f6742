// How products of bf16 by bf16 go on this machine: the fastest of four ways, decided once by measurements
// whose margins are wide, so that every run, every rank and every such machine decides the same.
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

// Dots: where the CPU has no tiles, and vdpbf16ps multiplies faster than fp32's multiply-add by a quarter.
// Tiles: where the CPU has them, they give the bits of their model (tile_unit.h) on a drawn product, and
// oneDNN is not faster by a quarter on one thread; else oneDNN. Takes a millisecond, twenty where there are
// tiles; asked once.
const Bf16Products& bf16_products();

// The trial of tiles: whether this product of bf16 has the bits of v4::gemm_tiles_by_model. Needs AVX-512.
bool has_the_models_bits(void (*tiles)(const GemmArgs&));

}  // namespace cleave::kernels::cpu
