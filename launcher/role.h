// Role of a launcher that another launcher may have started: once per rank (Azure ML with
// process_count_per_instance, mpirun, srun, torchrun), once per host, or alone. A pure function of the
// environment.
#pragma once
#include <string>

#include "launcher/discovery.h"

namespace cleave::launcher {

struct LauncherRole {
  enum class Kind {
    make,   // no other launcher: makes a job
    adopt,  // is a rank: becomes the program
    node    // is one per host: starts its host's ranks
  };
  Kind kind = Kind::make;
  // For adopt: the rank's place. For node: the host's place (node_rank, nodes, master), and local_size as the
  // number of ranks that its launcher wants there, 0 if unknown.
  comm::RankInfo info = {};
};

// Throws Error(usage) like discover_ranks().
LauncherRole role_of_launcher(const Environment& env);

// Variables to add for an adopted rank: torch's variables if another kind of launcher set only its own; empty
// if torch's exist.
Environment adopted_environment(const Environment& env, const comm::RankInfo& info);

}  // namespace cleave::launcher
