// Options of the Hugging Face Trainer and its scripts, on the command line of `cleave train`.
#pragma once
#include <string>
#include <vector>

#include "app/arguments.h"

namespace cleave::app {

struct OwnArguments {
  Arguments arguments;             // with the names of this program
  std::vector<std::string> notes;  // one sentence per option without effect
};

// Translates options. Error(usage) for unsupported ones, with the equivalent option; disabled
// options (false, no, none, 0) are accepted. Unknown options stay as they are.
OwnArguments own_arguments(const Arguments& arguments);

}  // namespace cleave::app
