// What launching is: included where an op's check() is, so that who launches it is compiled without the
// backends.
#pragma once
#include "core/build.h"
#include "kernels/launch.h"

// Behind an op's check(): defines launch(op, stream). Here alone is known that there are several backends.
#define CLEAVE_LAUNCH(Op)                                \
  void launch(const Op& op, Stream& stream) {            \
    op.check();                                          \
    if (stream.dry()) return count(#Op, op);             \
    if constexpr (build::cuda)                           \
      if (stream.on_cuda()) return gpu::run(op, stream); \
    stream.enqueue([op] { cpu::run(op); });              \
  }

namespace cleave::kernels {

// A launch on a dry stream. An op that is several on a CPU counts as these.
template <class Op>
void count(std::string_view name, const Op& op) {
  Tally* tally = Tally::current();
  if (!tally) return;
  if constexpr (requires { op.add_parts(*tally); })
    op.add_parts(*tally);
  else
    add_to(*tally, name, op);
}

}  // namespace cleave::kernels
