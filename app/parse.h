// Command-line parsing shared by the subcommands.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "app/arguments.h"

namespace cleave::app {

// Parses; long options may use - instead of _. Returns false if --help was printed. Error(usage)
// lists unknown options and words in order, each with the nearest known one; otherwise it names the
// option and its expected value.
bool parse(CLI::App& app, Arguments arguments);

// Returns a validator with a readable description: "an integer of at least 1", "a number from 0 to
// 1", "one of auto, on and off". Other values, including NaN, are errors; values are never clamped.
CLI::Validator integer(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
CLI::Validator seed();  // all values of uint64_t
CLI::Validator number(double least, double most = std::numeric_limits<double>::infinity());
CLI::Validator one_of(std::vector<std::string> words);

// Returns "; did you mean train?", or an empty string.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace cleave::app
