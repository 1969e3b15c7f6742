// The launcher as it is started by another one on other hosts, and what starts ranks in its place.
#pragma once
#include "app/arguments.h"
#include "launcher/launch.h"
#include "launcher/remote_commands.h"

namespace cleave::app {

// `launch --node`: reads its host's part of a job from standard input, a length and so many bytes, of which
// SLURM hands all parts to every host, and stays with its ranks until they have ended, or nobody is there any
// more; `launch --node N`: takes it from the environment. `launch --rank`: becomes the rank that MPI says it
// is, of the job in the environment.
int serve_host(const Arguments& arguments);

// mpirun, whose own output and exit code are the job's.
launcher::LaunchResult launch_by_other(const launcher::RemoteCommand& command,
                                       const launcher::StayOptions& stay);

// Executes a command in place of this process. Error(usage) where that cannot be.
[[noreturn]] void become(const std::vector<std::string>& command);

}  // namespace cleave::app
