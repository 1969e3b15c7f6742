// Plain loop on all threads of the team, for limits and initialization.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/team.h"

namespace cleave::bench {

// Calls body(begin, end) once for each piece of [0, numel), on any thread.
template <class Body>
void over(int64_t numel, const Body& body) {
  constexpr int64_t kPiece = 1 << 16;
  struct Loop {
    const Body& body;
    int64_t numel;
  } const loop{body, numel};
  run_shares((numel + kPiece - 1) / kPiece,
             [](const void* context, int, int64_t begin, int64_t end) {
               const auto& l = *static_cast<const Loop*>(context);
               l.body(begin * kPiece, std::min(end * kPiece, l.numel));
             },
             &loop);
}

}  // namespace cleave::bench
