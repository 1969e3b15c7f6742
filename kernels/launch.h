// One struct per kernel: its fields are the operands, outputs first, its comment is the contract. `launch(op,
// stream)` checks the operands on the caller's thread and enqueues the body; the macro below is the only code
// that knows there are several backends. Operands of a CUDA stream's kernels are in that GPU's memory, except
// where an op says more.
#pragma once
#include "core/build.h"
#include "device/stream.h"
#include "device/tensor.h"
#include "kernels/tally.h"

// After an op struct: declares its bodies, which the backends' folders define, and how to launch it. The op
// says what it moves, traffic(), and where arithmetic takes longer, what it computes, flops()
// (kernels/tally.h).
#define CLEAVE_KERNEL(Op)                                \
  namespace cpu {                                        \
  void run(const Op& op);                                \
  }                                                      \
  namespace gpu {                                        \
  void run(const Op& op, Stream& stream);                \
  }                                                      \
  inline void launch(const Op& op, Stream& stream) {     \
    op.check();                                          \
    if (stream.dry()) return count(#Op, op);             \
    if constexpr (build::cuda)                           \
      if (stream.on_cuda()) return gpu::run(op, stream); \
    stream.enqueue([op] { cpu::run(op); });              \
  }
