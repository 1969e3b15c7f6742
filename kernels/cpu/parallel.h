// Parallel loops over independent pieces on the calling thread's team. Pieces do not depend on the number of
// threads, so results do not either.
#pragma once
#include "device/team.h"
#include "kernels/cpu/bodies.h"
#include "kernels/cpu/simd.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {

// Below this number of elements a fork costs more than it saves.
inline constexpr int64_t kSerialNumel = 1 << 14;

// One share of a loop: the function that contains a body's vectors. Copies the body, so that its members can
// be in registers, and inlines all its calls; otherwise the compiler would call a long body once per vector
// and pass its members through the stack. scripts/check_stack.py verifies this.
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

// Calls body(i) or body(i, thread) for every i of [0, count), divided evenly over the threads if `fork` is
// true.
template <class Body>
CLEAVE_INLINE void parallel_for(int64_t count, bool fork, const Body& body) {
  if (fork)
    run_shares(count, share_of<Body>, &body);
  else
    share_of<Body>(&body, 0, 0, count);
}

// The same, in chunks of `grain` for the next free thread.
template <class Body>
CLEAVE_INLINE void parallel_in_turn(int64_t count, int64_t grain, bool fork, const Body& body) {
  if (fork)
    run_in_turn(count, grain, share_of<Body>, &body);
  else
    share_of<Body>(&body, 0, 0, count);
}

// Calls body(begin, end) for consecutive blocks of `block` elements.
template <class Body>
CLEAVE_INLINE void parallel_blocks(int64_t numel, int64_t block, Body body) {
  parallel_for((numel + block - 1) / block, numel > kSerialNumel, [=](int64_t b) {
    const int64_t begin = b * block, end = begin + block < numel ? begin + block : numel;
    body(begin, end);
  });
}

// Calls body(i, All or Part) for every vector of [0, numel).
template <class Body>
CLEAVE_INLINE void parallel_vectors(int64_t numel, Body body) {
  parallel_blocks(numel, 1 << 12, [=](int64_t begin, int64_t end) { for_vectors(begin, end, body); });
}

// Calls body(row) for every row; forks if rows * `work` elements are worth it.
template <class Body>
CLEAVE_INLINE void parallel_rows(int64_t rows, int64_t work, const Body& body) {
  parallel_for(rows, rows * work > kSerialNumel, body);
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
