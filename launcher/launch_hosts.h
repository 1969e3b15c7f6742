// Runs a plan on its hosts. A launcher on each host (`cleave launch --node`) starts the host's ranks. This
// launcher receives their output and exit codes, forwards signals, ends the other ranks when one fails or a
// host is lost, and names the rank that caused the failure. However it ends, no process of the job remains on
// any host.
#pragma once
#include "launcher/launch.h"
#include "launcher/remote_commands.h"
#include "launcher/serve_node.h"

namespace cleave::launcher {

// Like launch_node(), for kinds that start launchers; messages about the end of a rank name its host. Returns
// 6 and the host's name if a host was not reached or its connection broke.
LaunchResult launch_hosts(const LaunchPlan& plan, const RemoteOptions& remote, const StayOptions& stay = {},
                          const LaunchCallbacks& callbacks = {});

}  // namespace cleave::launcher
