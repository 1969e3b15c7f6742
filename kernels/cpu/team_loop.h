// Simple parallel loops on the calling thread's team, for work that does not need a body per instruction set.
#pragma once
#include "device/team.h"

namespace cleave::kernels::cpu {

// Calls body(begin, end) for even parts of [0, count), on all threads if `fork` is true.
template <class Body>
void team_loop(int64_t count, bool fork, const Body& body) {
  if (!fork) return body(int64_t{0}, count);
  run_shares(
      count,
      [](const void* context, int, int64_t begin, int64_t end) {
        (*static_cast<const Body*>(context))(begin, end);
      },
      &body);
}

}  // namespace cleave::kernels::cpu
