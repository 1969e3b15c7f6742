#pragma once
#include <string>
#include <vector>

namespace cleave::app {

// Words of a command line, without the names of the program and the command.
using Arguments = std::vector<std::string>;

}  // namespace cleave::app
