// Compares the flight records of a job's ranks, and names the rank that differs.
#pragma once
#include <string>
#include <vector>

#include "launcher/flight_record.h"

namespace cleave::launcher {

struct FlightReport {
  std::vector<int> suspects;  // ranks that the others wait for, or that crashed
  std::string text;           // lines, each with a newline
};

// One line per rank with its call, one per difference, and the stacks of the suspects; with `all_stacks`
// those of all threads of all ranks.
FlightReport flight_report(const std::vector<FlightRecord>& records, bool all_stacks = false);

}  // namespace cleave::launcher
