// Starts a plan on its hosts and stays with it: a launcher there (`cleave launch --node`) starts each host's
// ranks, and this one hears what they say and how they end, passes signals on, ends the rest when one fails
// or a host is lost, and says which rank was the cause. However it ends, nothing of the job is left on any
// host.
#pragma once
#include "launcher/launch.h"
#include "launcher/remote_commands.h"

namespace cleave {

// What a host's launcher says to the one that started it stands on lines of standard output that begin so;
// all others are those of ranks.
inline constexpr char kNodeWord = '\x1e';

// For kinds that start launchers. As launch_node(); a rank's end names its host. 6 and the host's name where
// a host was not reached or its connection broke.
LaunchResult launch_hosts(const LaunchPlan& plan, const RemoteOptions& remote, const StayOptions& stay = {},
                          const LaunchCallbacks& callbacks = {});

// One host's side of it: launches, says on standard output what ranks say and how they end, and returns the
// exit code.
int serve_node(const NodeStart& node, const StayOptions& stay);

// The number of the MPI or SLURM process that this is, of `world`. Error(usage) where there is none, or
// another number of them.
int rank_of_mpi(const Environment& env, int world);

}  // namespace cleave
