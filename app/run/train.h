#pragma once
#include "app/run/run_options.h"
#include "launcher/job.h"

namespace cleave::app {

// A whole training as a rank of a job, from the ds_config to the last checkpoint: what a front does within
// Job::run(). Makes token files of texts, and finds the number of steps where epochs are wanted. Returns
// Exit::ok, or Exit::stopped where a signal asked for it; throws Error.
Exit train(RunOptions wanted, launcher::Job& job);

}  // namespace cleave::app
