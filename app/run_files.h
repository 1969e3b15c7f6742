// Metrics of runs that commands show.
#pragma once
#include <string>

namespace cleave::app {

// Returns the metrics file of a run: the file itself, or the only file of metrics in a folder (*.jsonl).
// Throws Error(usage) if there is none, or more than one.
std::string metrics_file_of(const std::string& run);

}  // namespace cleave::app
