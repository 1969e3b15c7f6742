// The environment variables of this program, CLEAVE_*, in one table: what each is for and what it may be.
// Whoever reads one asks here, so that a value that nobody knows is an error and never the same as none.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

struct EnvironmentVariable {
  std::string_view name;
  // The values that it may have, separated by blanks: words, FILE (one that can be read, or a library's name,
  // which the system looks for), BYTES, NUMBER, CORES (numbers and commas) or TEXT.
  std::string_view values;
  std::string_view wanted;     // the same for people
  std::string_view otherwise;  // what it means to leave it out, as the end of a sentence
};

std::span<const EnvironmentVariable> environment_variables();

// The value of a variable of the table, empty where it is not set or set to nothing. Error(usage) names the
// variable, its value and what it may be. Names that begin with CLEAVE_TEST_ are free for tests.
std::string environment_value(std::string_view name);

// The same check of every variable in an environment (entries NAME=value, the last one null); before anything
// starts. Returns the names that begin with CLEAVE_ and are none of the table's.
std::vector<std::string> check_environment(const char* const* environment);

}  // namespace cleave
