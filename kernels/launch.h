// One struct per kernel: its fields are the operands, outputs first, its comment is the contract. `launch(op, stream)`
// checks the operands on the caller's thread and enqueues the body; the macro below is the only code that knows there
// may be several backends.
#pragma once
#include "device/stream.h"
#include "device/tensor.h"

// After an op struct: declares its body, which a backend's folder defines, and how to launch it.
#define CLEAVE_KERNEL(Op)                         \
  namespace cpu {                                 \
  void run(const Op& op);                         \
  }                                               \
  inline void launch(const Op& op, Stream& stream) { \
    op.check();                                   \
    stream.enqueue([op] { cpu::run(op); });       \
  }
