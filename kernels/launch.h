// One struct per kernel: its fields are the operands, outputs first, its comment is the contract. `launch(op,
// stream)` checks the operands on the caller's thread and enqueues the body of the stream's device
// (kernels/launched.h). Operands of a CUDA stream's kernels are in that GPU's memory, except where an op says
// more.
#pragma once
#include "device/stream.h"
#include "device/tensor.h"
#include "kernels/tally.h"

// After an op struct: declares its bodies, which the backends' folders define, and how to launch it. The op
// says what it moves, traffic(), and where arithmetic takes longer, what it computes, flops(); one that could
// be part of the product before or behind it also what it then would move more, least() (kernels/tally.h).
#define CLEAVE_KERNEL(Op)                 \
  namespace cpu {                         \
  void run(const Op& op);                 \
  }                                       \
  namespace gpu {                         \
  void run(const Op& op, Stream& stream); \
  }                                       \
  void launch(const Op& op, Stream& stream);
