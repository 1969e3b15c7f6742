#include "kernels/cpu/attention_forward.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

void attention(const AttentionArgs& args) {
  with_type(args.qkv.type, [&](auto t) { forward_heads<FloatBlocks<decltype(t)>>(args); });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
