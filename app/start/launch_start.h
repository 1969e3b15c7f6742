// Creates a launch plan from a command line and an environment: hosts, slots, and the rule that
// selected them.
#pragma once
#include "app/start/launch_options.h"
#include "launcher/discovery.h"
#include "launcher/launch_plan.h"

namespace cleave::app {

// The part that this process starts: the whole plan by other launchers, or one node here.
struct LaunchStart {
  launcher::LaunchPlan plan;
  bool several = false;
  size_t node = 0;
};

bool has_hostfile(const LaunchRequest& request);

// Returns the plan of a launcher that no other launcher started. Unless it is a dry run, asks the
// first host for its address if no name or option gives it. Error(usage).
LaunchStart start_of(const LaunchRequest& request, const launcher::Environment& env);

// Returns this host's part of the job, for a launcher that another launcher started once per host,
// as `info` says. Error(usage) for contradictions.
LaunchStart start_of_node(const LaunchRequest& request, const launcher::Environment& env,
                          const comm::RankInfo& info);

}  // namespace cleave::app
