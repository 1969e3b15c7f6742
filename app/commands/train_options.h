// The command line of `cleave train`.
#pragma once
#include <string>
#include <vector>

#include "app/arguments.h"
#include "app/run/run_options.h"

namespace cleave::app {

struct TrainOptions {
  RunOptions run;
  std::vector<std::string> notes;  // on options that change nothing
};

// False where help was asked for and given. Error(usage) as parse() and for options that lack another one.
bool parse_options(TrainOptions& options, const Arguments& arguments);

}  // namespace cleave::app
