// What the kernel says in files of lines "name : value" under /proc.
#pragma once
#include <string>
#include <string_view>

namespace cleave {

// The value of the first line that begins with the name; empty when there is none.
std::string proc_value(const char* file, std::string_view name);

}  // namespace cleave
