// Interface of kernels. Each kernel is a struct: its fields are the operands, outputs first, and its comment
// is the contract. `launch(op, stream)` checks the operands on the caller's thread and enqueues the body of
// the stream's device (kernels/launched.h). Operands of kernels on a CUDA stream are in the memory of its
// GPU, unless an op states otherwise.
#pragma once
#include "device/stream.h"
#include "device/tensor.h"
#include "kernels/tally.h"

// Follows an op struct: declares its bodies, which the backend folders define, and launch(). The op reports
// its memory traffic, traffic(); its arithmetic, flops(), if that takes longer; and if a preceding or
// following product could include it, the traffic that remains then, least() (kernels/tally.h).
#define CLEAVE_KERNEL(Op)                 \
  namespace cpu {                         \
  void run(const Op& op);                 \
  }                                       \
  namespace gpu {                         \
  void run(const Op& op, Stream& stream); \
  }                                       \
  void launch(const Op& op, Stream& stream);
