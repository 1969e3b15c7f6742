// The threads that a kernel's loops run on: the calling one and helpers of its own, which stay between loops.
// Whoever waits, a helper for the next loop or the caller for the end of this one, watches for a moment and
// then sleeps, so that it does not keep a core from the work that it waits for; and who is done with its own
// share takes over what the others have not begun. Pieces of a loop do not depend on the number of threads,
// so neither do results. Plain functions only: bodies that are compiled once per instruction set include
// this.
#pragma once
#include <cstdint>

namespace cleave {

// How many threads a loop gets, the caller included; of the whole process. At first OMP_NUM_THREADS, or the
// cores that this process may use (core/cores.h). A helper is started when a loop first needs it and ends
// with the thread that called.
int team_threads();
void set_team_threads(int threads);  // at least 1

// A range of a loop's pieces, on the given thread of [0, team_threads()).
using Share = void (*)(const void* context, int thread, int64_t begin, int64_t end);

// All pieces of [0, count), in ranges: first those of the thread's own even share, then what others have
// left. Returns when they are done. What a share does may not throw; a loop within a share runs on that
// thread alone, as thread 0.
void run_shares(int64_t count, Share share, const void* context);
// The same, `grain` pieces at a time, to whichever thread is free: for pieces of unlike length.
void run_in_turn(int64_t count, int64_t grain, Share share, const void* context);

// What the calling thread's team did, for tests and reports.
struct TeamStatistics {
  int helpers = 0;
  int64_t loops = 0;   // that helpers took part in
  int64_t sleeps = 0;  // waits, of helpers and of the caller, that watching did not end
};
TeamStatistics team_statistics();

}  // namespace cleave
