// What a launcher is to do where another launcher started it: once for each rank (Azure ML with
// process_count_per_instance, mpirun, srun, torchrun), once on each host, or alone. A pure function of the
// environment.
#pragma once
#include <string>

#include "launcher/discovery.h"

namespace cleave::launcher {

struct LauncherRole {
  enum class Kind {
    make,   // nobody said anything: it makes a job
    adopt,  // it is a rank: it becomes the program
    node    // it is one on each host: it starts its host's ranks
  };
  Kind kind = Kind::make;
  // For adopt the rank's place; for node the host's (node_rank, nodes, master) and local_size, the ranks that
  // its launcher wants there, 0 where it does not say.
  comm::RankInfo info = {};
};

// Error(usage) as discover_ranks().
LauncherRole role_of_launcher(const Environment& env);

// What a rank that was adopted gets besides its environment: torch's variables where another kind of launcher
// said the same in its own words; nothing where torch's are there.
Environment adopted_environment(const Environment& env, const comm::RankInfo& info);

}  // namespace cleave::launcher
