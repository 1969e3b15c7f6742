// Implementation of launch(). Included by the files of the check() functions, so that callers of launch() are
// compiled without the backends.
#pragma once
#include "core/build.h"
#include "kernels/launch.h"

// Follows an op's check(): defines launch(op, stream). The only code that selects a backend.
#define CLEAVE_LAUNCH(Op)                                \
  void launch(const Op& op, Stream& stream) {            \
    op.check();                                          \
    if (stream.dry()) return count(#Op, op, stream);     \
    if constexpr (build::cuda)                           \
      if (stream.on_cuda()) return gpu::run(op, stream); \
    stream.enqueue([op] { cpu::run(op); });              \
  }

namespace cleave::kernels {

// Counts a launch on a dry stream. An op that is several ops on a CPU counts as these.
template <class Op>
void count(std::string_view name, const Op& op, const Stream& stream) {
  Tally* tally = Tally::current();
  if (!tally) return;
  tally->on(stream);
  if constexpr (requires { op.add_parts(*tally); })
    op.add_parts(*tally);
  else
    add_to(*tally, name, op);
}

}  // namespace cleave::kernels
