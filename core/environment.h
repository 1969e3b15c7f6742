// Table of the environment variables of this program (CLEAVE_*) with purpose and valid values. All code reads
// them through environment_value(), so an invalid value is always an error.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

struct EnvironmentVariable {
  std::string_view name;
  // Valid values, separated by blanks: words, FILE (a readable file, or a library name that the system
  // resolves), BYTES, NUMBER, CORES (numbers and commas) or TEXT.
  std::string_view values;
  std::string_view wanted;     // `values` in words for messages
  std::string_view otherwise;  // effect of an unset variable, as the end of a sentence
};

std::span<const EnvironmentVariable> environment_variables();

// Returns the value of a variable of the table; empty if it is unset or empty. Throws Error(usage) with the
// variable, its value and the valid values. Tests may use any name that begins with CLEAVE_TEST_.
std::string environment_value(std::string_view name);

// Checks all variables of an environment (entries NAME=value, null-terminated) before anything starts.
// Returns unknown names that begin with CLEAVE_.
std::vector<std::string> check_environment(const char* const* environment);

}  // namespace cleave
