// From a command line and an environment to a launch plan: which hosts and slots, and which rule decided.
#pragma once
#include "app/start/launch_options.h"
#include "launcher/discovery.h"
#include "launcher/launch_plan.h"

namespace cleave::app {

// What this process starts: all of the plan by way of other launchers, or one node here.
struct LaunchStart {
  launcher::LaunchPlan plan;
  bool several = false;
  size_t node = 0;
};

bool has_hostfile(const LaunchRequest& request);

// What a launcher starts that nobody else started. It asks the first host for its address where no name or
// option says it, unless it is a dry run. Error(usage).
LaunchStart start_of(const LaunchRequest& request, const launcher::Environment& env);

// Once on each host by another launcher, as `info` says: this host's part of its job. Error(usage) for
// contradictions.
LaunchStart start_of_node(const LaunchRequest& request, const launcher::Environment& env,
                          const comm::RankInfo& info);

}  // namespace cleave::app
