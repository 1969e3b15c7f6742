// Reads files with lines "name : value" under /proc.
#pragma once
#include <string>
#include <string_view>

namespace cleave {

// Returns the value of the first line that begins with the name; empty if none does.
std::string proc_value(const char* file, std::string_view name);

}  // namespace cleave
