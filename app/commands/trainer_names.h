// Options of Hugging Face's Trainer, and of the scripts that come with it, on the command line of `cleave
// train`.
#pragma once
#include <string>
#include <vector>

#include "app/arguments.h"

namespace cleave::app {

struct OwnArguments {
  Arguments arguments;             // in this program's names
  std::vector<std::string> notes;  // a sentence for each option that changes nothing here
};

// Error(usage) for those that are not built, with what to write in their place; an option that asks for
// nothing (false, no, none, 0) is none of them. What no table has stays as it is.
OwnArguments own_arguments(const Arguments& arguments);

}  // namespace cleave::app
