// Threads of kernel loops: the calling thread and its helper threads, which persist between loops. Waiting
// threads (a helper for the next loop, the caller for the end of a loop) spin for a moment and then sleep, so
// that they do not occupy a core that the work needs. A thread that finishes its share takes pieces that
// others have not started. The pieces of a loop do not depend on the number of threads, so results do not
// either. Plain functions only, because bodies compiled per instruction set include this file.
#pragma once
#include <cstdint>

namespace cleave {

// Number of threads of a loop, including the caller; per process. Initially OMP_NUM_THREADS or the usable
// cores (core/cores.h). A helper starts when a loop first needs it and ends with the calling thread.
int team_threads();
void set_team_threads(int threads);  // at least 1

// Processes pieces [begin, end) on the given thread of [0, team_threads()).
using Share = void (*)(const void* context, int thread, int64_t begin, int64_t end);

// Runs all pieces of [0, count) in ranges: each thread starts with its even share and then takes pieces of
// others. Blocks until done. A share must not throw; a loop inside a share runs on its thread only, as thread
// 0.
void run_shares(int64_t count, Share share, const void* context);
// The same, in chunks of `grain` pieces for the next free thread; for pieces of unequal cost.
void run_in_turn(int64_t count, int64_t grain, Share share, const void* context);

// Statistics of the calling thread's team, for tests and reports.
struct TeamStatistics {
  int helpers = 0;
  int64_t loops = 0;   // with helpers
  int64_t sleeps = 0;  // waits of helpers and caller that slept after spinning
};
TeamStatistics team_statistics();

}  // namespace cleave
