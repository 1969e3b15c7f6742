// Starts a plan on its hosts and stays with it: a launcher there (`cleave launch --node`) starts each host's
// ranks, and this one hears what they say and how they end, passes signals on, ends the rest when one fails
// or a host is lost, and says which rank was the cause. However it ends, nothing of the job is left on any
// host.
#pragma once
#include "launcher/launch.h"
#include "launcher/remote_commands.h"
#include "launcher/serve_node.h"

namespace cleave::launcher {

// For kinds that start launchers. As launch_node(); a rank's end names its host. 6 and the host's name where
// a host was not reached or its connection broke.
LaunchResult launch_hosts(const LaunchPlan& plan, const RemoteOptions& remote, const StayOptions& stay = {},
                          const LaunchCallbacks& callbacks = {});

}  // namespace cleave::launcher
