#include "kernels/rotary.h"

#include "kernels/cpu/operands.h"

namespace cleave::cpu {

void run(const Rotary& op) {
  rotary({.qkv = vec(op.qkv),
          .cos = op.cos.as<float>(),
          .sin = op.sin.as<float>(),
          .documents = op.documents.defined() ? op.documents.as<int32_t>() : nullptr,
          .rows = op.qkv.dim(0),
          .seq = op.seq,
          .first_position = op.first_position,
          .turned_heads = op.heads + op.kv_heads,
          .stride = op.qkv.dim(1),
          .head_dim = op.head_dim,
          .inverse = op.inverse});
}

}  // namespace cleave::cpu
