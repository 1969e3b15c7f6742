// One host's part of a job on several hosts.
#pragma once
#include "launcher/discovery.h"
#include "launcher/launch.h"

namespace cleave::launcher {

// First byte of standard output lines for the launcher that started this one; all other lines come from
// ranks.
inline constexpr char kNodeWord = '\x1e';

// Launches the node's ranks, reports their output and exit codes on standard output, and returns the exit
// code.
int serve_node(const NodeStart& node, const StayOptions& stay);

// Number of this MPI process among `world`. Throws Error(usage) if it is unknown or the number of processes
// differs.
int rank_of_mpi(const Environment& env, int world);

}  // namespace cleave::launcher
