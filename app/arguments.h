#pragma once
#include <string>
#include <vector>

namespace cleave::app {

// Words of a command line, without the program's name and the command's.
using Arguments = std::vector<std::string>;

}  // namespace cleave::app
