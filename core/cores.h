// Number of compute threads of this process.
#pragma once
#include <string>
#include <vector>

namespace cleave {

// Cores that the scheduler may place this process on, in ascending order; never empty.
std::vector<int> usable_cores();

// CPU limit of the process's control groups (version 1 and 2) in cores: the minimum of quota / period over
// the group and its parents. 0: no limit, or no readable limit. `proc` is the process folder (/proc/self),
// `mount` the control group mount (/sys/fs/cgroup).
double cpu_quota(const std::string& proc = "/proc/self", const std::string& mount = "/sys/fs/cgroup");

struct ThreadCount {
  int threads = 1;
  std::string why;  // such as "2 usable cores" or "--threads"
};

// Inputs of the default number of threads.
struct ThreadFacts {
  int cores = 1;           // usable by this process
  double quota = 0;        // limit in cores; 0: no limit
  int local_ranks = 1;     // ranks of this job on the machine
  bool own_cores = false;  // a launcher bound this rank to its cores
};
// Facts of this process. A rank counts as bound if its cores differ from those of its parent process.
ThreadFacts thread_facts(int local_ranks = 1);

// One thread per core. Bound ranks use all of their cores; other ranks share the cores evenly. All ranks
// share a quota, rounded up.
ThreadCount choose_threads(const ThreadFacts& facts);

inline constexpr int kMostThreads = 4096;

// Returns `asked` (--threads) if it is positive, else OMP_NUM_THREADS, else
// choose_threads(thread_facts(ranks)). Throws Error(usage) if OMP_NUM_THREADS is not a number from 1 to
// kMostThreads.
ThreadCount threads_of_process(int asked = 0, int local_ranks = 1);

}  // namespace cleave
