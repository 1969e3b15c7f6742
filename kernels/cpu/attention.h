// Attention on the CPU by one of its bodies, which run(op) chooses.
#pragma once
#include "kernels/attention.h"

namespace cleave::kernels::cpu {

struct AttentionArgs;
using AttentionBody = void (*)(const AttentionArgs& args);

// The op by a body of the forward, or of the backward, for its type of operands.
void run_by(AttentionBody body, const AttentionForward& op);
void run_by(AttentionBody body, const AttentionBackward& op);

}  // namespace cleave::kernels::cpu
