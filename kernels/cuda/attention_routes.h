// The two ways in which attention is computed on a GPU. Operands were checked and are not empty.
#pragma once
#include "kernels/attention.h"

namespace cleave::gpu {

// In this folder's own kernels; all that is asked of a body.
void run_own(const AttentionForward& op, Stream& stream);
void run_own(const AttentionBackward& op, Stream& stream);
// In cuDNN, where it is there, knows the shape, and was proved; false: nothing was done that run_own does not
// redo.
bool library_attention(const AttentionForward& op, Stream& stream);
bool library_attention(const AttentionBackward& op, Stream& stream);

}  // namespace cleave::gpu
