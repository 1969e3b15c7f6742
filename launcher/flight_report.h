// Compares the flight records of a job's ranks, and names the rank that differs.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "launcher/flight_record.h"

namespace cleave::launcher {

struct FlightReport {
  std::vector<int> suspects;  // ranks that the others wait for, or that crashed
  std::string text;           // lines, each with a newline
};

// One line per rank with its call, one per difference, and the stacks of the suspects; with `all_stacks`
// those of all threads of all ranks. `exits` are the exit codes of ranks that have ended.
FlightReport flight_report(const std::vector<FlightRecord>& records, const std::map<int, int>& exits = {},
                           bool all_stacks = false);

}  // namespace cleave::launcher
