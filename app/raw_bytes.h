#pragma once
#include <string>
#include <vector>

namespace cleave {

// Prints one warning when a file that is read as text, one byte a token, holds JSON lines, or a compressed or
// columnar data set: training would learn its braces and key names, or noise. Empty paths, files that cannot
// be read and token files are passed over.
void warn_of_raw_bytes(const std::vector<std::string>& paths);

}  // namespace cleave
