// The command line of `cleave train`.
#pragma once
#include <string>
#include <vector>

#include "app/arguments.h"
#include "app/run/run_options.h"

namespace cleave::app {

struct TrainOptions {
  RunOptions run;
  std::vector<std::string> notes;  // about options without effect
};

// Parses the command line; returns false if help was printed. Error(usage) as parse(), and for
// options that require another one.
bool parse_options(TrainOptions& options, const Arguments& arguments);

}  // namespace cleave::app
