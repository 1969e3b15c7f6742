#pragma once
#include "app/run/run_options.h"
#include "launcher/job.h"

namespace cleave::app {

// Runs a training as a rank of a job, from the ds_config to the last checkpoint; a front end calls
// it within Job::run(). Tokenizes texts, and computes the number of steps from epochs. Returns
// Exit::ok, or Exit::stopped after a signal; throws Error.
Exit train(RunOptions wanted, launcher::Job& job);

}  // namespace cleave::app
