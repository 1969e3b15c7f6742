// What the launcher asks hosts by ssh before ranks start.
#pragma once
#include <string>
#include <vector>

#include "app/start/launch_options.h"

namespace cleave::app {

// Returns the first address that a host reports; by ssh unless it is this host. Throws Error(rank_lost).
std::string asked_address(const std::string& host, const LaunchRequest& request);

// Returns the hosts that run a command by ssh within ten seconds, in their order; this host always does.
// Asks up to 32 hosts at a time.
launcher::Hosts answering(const launcher::Hosts& hosts, const LaunchRequest& request);

}  // namespace cleave::app
