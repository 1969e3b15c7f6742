// Command-line parsing shared by the subcommands.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "app/arguments.h"

namespace cleave::app {

// Parses; long options may spell _ as -. Returns false when --help was asked for and printed. Throws
// Error(usage): unknown options and words in the order typed, each with the nearest known one; otherwise the
// option and what it wants.
bool parse(CLI::App& app, Arguments arguments);

// What an option takes, said as people write it: "an integer of at least 1", "a number from 0 to 1", "one of
// auto, on and off". Anything else, not-a-number included, is refused and never clamped.
CLI::Validator integer(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
CLI::Validator number(double least, double most = std::numeric_limits<double>::infinity());
CLI::Validator one_of(std::vector<std::string> words);

// "; did you mean train?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace cleave::app
