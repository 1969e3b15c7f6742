#include "kernels/rotary.h"

#include "kernels/cpu/operands.h"

namespace cleave::kernels::cpu {

void run(const Rotary& op) {
  const int32_t* positions = op.positions.defined() ? op.positions.as<int32_t>() : nullptr;
  for (int64_t row = 0; positions && row < op.qkv.dim(0); ++row)
    CHECK(positions[row] >= 0 && positions[row] < op.cos.dim(0),
          "Rotary: row {} stands at position {}, cos has {}", row, positions[row], op.cos.dim(0));
  rotary({.qkv = vec(op.qkv),
          .cos = op.cos.as<float>(),
          .sin = op.sin.as<float>(),
          .documents = op.documents.defined() ? op.documents.as<int32_t>() : nullptr,
          .positions = positions,
          .rows = op.qkv.dim(0),
          .seq = op.seq,
          .first_position = op.first_position,
          .turned_heads = op.heads + op.kv_heads,
          .stride = op.qkv.dim(1),
          .head_dim = op.head_dim,
          .inverse = op.inverse});
}

}  // namespace cleave::kernels::cpu
