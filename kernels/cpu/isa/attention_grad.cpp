#include "kernels/cpu/attention_backward.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

void attention_grad(const AttentionArgs& args) {
  with_type(args.qkv.type, [&](auto t) { backward_heads<FloatBlocks<decltype(t)>>(args); });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
