// One host's side of a job on several hosts.
#pragma once
#include "launcher/discovery.h"
#include "launcher/launch.h"

namespace cleave::launcher {

// What a host's launcher says to the one that started it stands on lines of standard output that begin so;
// all others are those of ranks.
inline constexpr char kNodeWord = '\x1e';

// Launches, says on standard output what ranks say and how they end, and returns the
// exit code.
int serve_node(const NodeStart& node, const StayOptions& stay);

// The number of the MPI process that this is, of `world`. Error(usage) where there is none, or
// another number of them.
int rank_of_mpi(const Environment& env, int world);

}  // namespace cleave::launcher
