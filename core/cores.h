// How many threads this process should compute with.
#pragma once
#include <string>
#include <vector>

namespace cleave {

// Cores that the scheduler may place this process on, in ascending order; never empty.
std::vector<int> usable_cores();

// Cores' worth of time that the process's control groups grant: the least quota / period over the group and
// all groups above it, of version 1 and 2. 0: no limit, or none that can be read. `proc` is the folder of the
// process, /proc/self; `mount` where the groups are, /sys/fs/cgroup.
double cpu_quota(const std::string& proc = "/proc/self", const std::string& mount = "/sys/fs/cgroup");

struct ThreadCount {
  int threads = 1;
  std::string why;  // such as "2 usable cores" or "--threads"
};

// What decides where the user says nothing.
struct ThreadFacts {
  int cores = 1;           // usable by this process
  double quota = 0;        // cores' worth of time; 0: no limit
  int local_ranks = 1;     // processes of this job that share the machine
  bool own_cores = false;  // the cores are this rank's alone: a launcher bound it to them
};
// The facts of this process. A rank whose cores are not those of the process that started it was bound to
// them.
ThreadFacts thread_facts(int local_ranks = 1);

// One thread a core. Ranks with cores of their own use all of those, others share evenly; a quota is shared
// by all ranks either way, and rounded up.
ThreadCount choose_threads(const ThreadFacts& facts);

inline constexpr int kMostThreads = 4096;

// `asked` (--threads) when it is positive, else OMP_NUM_THREADS, else choose_threads(thread_facts(ranks)).
// Error(usage) when OMP_NUM_THREADS is not a number from 1 to kMostThreads.
ThreadCount threads_of_process(int asked = 0, int local_ranks = 1);

}  // namespace cleave
