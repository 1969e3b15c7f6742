// Loops over independent pieces of work on the calling thread's team. Pieces do not depend on the number of
// threads, so neither do results.
#pragma once
#include "device/team.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/simd.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Below this many elements a fork costs more than it brings.
inline constexpr int64_t kSerialNumel = 1 << 14;

// One share of a loop: the function in which a body's vectors live. The body is copied, so that what it holds
// can be in registers, and everything it calls is inlined: the compiler would call a long body once a vector,
// and pass what it holds through the stack. scripts/check_stack.py looks.
template <class Body>
[[gnu::flatten, gnu::noinline]] static void share_of(const void* context, int thread, int64_t begin,
                                                     int64_t end) {
  const Body body = *static_cast<const Body*>(context);
  for (int64_t i = begin; i < end; ++i) {
    if constexpr (requires { body(i, thread); })
      body(i, thread);
    else
      body(i);
  }
}

// body(i) or body(i, thread) for every i of [0, count), cut evenly among the threads where `fork` is true.
template <class Body>
CLEAVE_INLINE void parallel_for(int64_t count, bool fork, const Body& body) {
  if (fork)
    run_shares(count, share_of<Body>, &body);
  else
    share_of<Body>(&body, 0, 0, count);
}

// The same, `grain` at a time to whichever thread is free.
template <class Body>
CLEAVE_INLINE void parallel_in_turn(int64_t count, int64_t grain, bool fork, const Body& body) {
  if (fork)
    run_in_turn(count, grain, share_of<Body>, &body);
  else
    share_of<Body>(&body, 0, 0, count);
}

// body(begin, end) for consecutive blocks of `block` elements.
template <class Body>
CLEAVE_INLINE void parallel_blocks(int64_t numel, int64_t block, Body body) {
  parallel_for((numel + block - 1) / block, numel > kSerialNumel, [=](int64_t b) {
    const int64_t begin = b * block, end = begin + block < numel ? begin + block : numel;
    body(begin, end);
  });
}

// body(i, All or Part) for every vector of [0, numel).
template <class Body>
CLEAVE_INLINE void parallel_vectors(int64_t numel, Body body) {
  parallel_blocks(numel, 1 << 12, [=](int64_t begin, int64_t end) { for_vectors(begin, end, body); });
}

// body(row) for every row; `work` elements a row decide whether to fork.
template <class Body>
CLEAVE_INLINE void parallel_rows(int64_t rows, int64_t work, const Body& body) {
  parallel_for(rows, rows * work > kSerialNumel, body);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
