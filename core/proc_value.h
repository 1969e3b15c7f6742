// Reads small files of the kernel under /proc and /sys.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace cleave {

// Returns the value of the first line "name : value" that begins with the name; empty if none does.
std::string proc_value(const char* file, std::string_view name);
// Returns the first line of a file; empty without the file.
std::string first_line(const std::filesystem::path& file);

}  // namespace cleave
