// What the ranks run: a Python script, a module, any program, or this one.
#pragma once
#include "app/start/launch_options.h"
#include "launcher/launch_plan.h"
#include "launcher/remote_commands.h"

namespace cleave::app {

// The file of this program.
std::string this_program();

// The mpirun in PATH, or the one beside it that a distribution gives the name of this kind's MPI:
// mpirun.mpich.
std::string mpirun_of(launcher::LauncherKind kind);

// The program that the request's words name. `here`: the ranks run on this machine, so a script that is not
// there is an error before anything starts. Error(usage).
launcher::Program program_of(const LaunchRequest& request, bool here);

}  // namespace cleave::app
