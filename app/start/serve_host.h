// The launcher as another launcher starts it on other hosts, and replacements of the process by
// ranks or other launchers.
#pragma once
#include "app/arguments.h"
#include "launcher/launch.h"
#include "launcher/remote_commands.h"

namespace cleave::app {

// Runs `launch --node`: reads the host's part of a job from standard input (its length, then its
// bytes; SLURM sends all parts to every host), and stays until its ranks have ended or the
// connection is closed. `launch --node N` reads the part from the environment. `launch --rank`
// becomes the rank that MPI assigns, of the job in the environment.
int serve_host(const Arguments& arguments);

// Runs mpirun; its output and exit code are those of the job.
launcher::LaunchResult launch_by_other(const launcher::RemoteCommand& command,
                                       const launcher::StayOptions& stay);

// Replaces this process by a command. Error(usage) if this fails.
[[noreturn]] void become(const std::vector<std::string>& command);

}  // namespace cleave::app
