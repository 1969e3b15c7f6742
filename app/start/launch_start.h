// Creates a launch plan from a command line and an environment: hosts, slots, and the rule that
// selected them.
#pragma once
#include <optional>
#include <string>

#include "app/start/launch_options.h"
#include "launcher/discovery.h"
#include "launcher/launch_plan.h"

namespace cleave::app {

// The part that this process starts: the whole plan by other launchers, or one node here.
struct LaunchStart {
  launcher::LaunchPlan plan;
  bool several = false;
  size_t node = 0;
  launcher::Hosts hosts = {};  // of the whole job, unless another launcher started this one
};

// Names a job in all its attempts.
struct JobName {
  std::string id, token;  // the token is secret
};
JobName new_job_name();

bool has_hostfile(const LaunchRequest& request);
// Hosts of the hostfile that the options select. Error(usage).
launcher::Hosts named_hosts(const LaunchRequest& request);

// Returns the plan of a launcher that no other launcher started. Unless it is a dry run, asks the
// first host for its address if no name or option gives it. `hosts`: instead of all that the hostfile and the
// options select. Error(usage).
LaunchStart start_of(const LaunchRequest& request, const launcher::Environment& env, const JobName& job,
                     const std::optional<launcher::Hosts>& hosts = {});

// Returns this host's part of the job, for a launcher that another launcher started once per host,
// as `info` says. Error(usage) for contradictions.
LaunchStart start_of_node(const LaunchRequest& request, const launcher::Environment& env,
                          const comm::RankInfo& info);

}  // namespace cleave::app
