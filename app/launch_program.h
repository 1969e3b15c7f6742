// What the ranks run: a Python script, a module, any program, or this one.
#pragma once
#include "app/launch_options.h"
#include "launcher/launch_plan.h"

namespace cleave {

// The file of this program.
std::string this_program();

// From the request's words. `here`: the ranks run on this machine, so a script that is not there is an
// error before anything starts. Error(usage).
Program program_of(const LaunchRequest& request, bool here);

}  // namespace cleave
