// Programs of the ranks: a Python script, a module, any program, or this one.
#pragma once
#include "app/start/launch_options.h"
#include "launcher/launch_plan.h"
#include "launcher/remote_commands.h"

namespace cleave::app {

// Returns the file of this program.
std::string this_program();

// Returns the mpirun in PATH, or the one next to it with the distribution's name for this MPI, such
// as mpirun.mpich.
std::string mpirun_of(launcher::LauncherKind kind);

// Returns the program of a request. `here`: the ranks run on this machine, so a missing script is
// an error before anything starts. Error(usage).
launcher::Program program_of(const LaunchRequest& request, bool here);

}  // namespace cleave::app
