// Attention on the CPU; run(op) selects the body.
#pragma once
#include "kernels/attention.h"

namespace cleave::kernels::cpu {

struct AttentionArgs;
using AttentionBody = void (*)(const AttentionArgs& args);

// Runs the op with a forward or backward body for its operand type.
void run_by(AttentionBody body, const AttentionForward& op);
void run_by(AttentionBody body, const AttentionBackward& op);

}  // namespace cleave::kernels::cpu
