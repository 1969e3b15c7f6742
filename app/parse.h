// Command-line parsing shared by the subcommands.
#pragma once
#include <CLI/CLI.hpp>

#include "app/commands.h"

namespace cleave {

// Parses; long options may spell _ as -. Returns false when --help was asked for and printed. Throws
// Error(usage) naming the option and how to see the others.
bool parse(CLI::App& app, Arguments arguments);

}  // namespace cleave
