// A schedule as a small JSON file, for schedules that somebody else invented:
//
//   {"stages": 2, "micro_batches": 2, "virtual_stages": 1,
//    "ranks": ["F0 F1 B0 B1",
//              "F0 B0 F1 B1"]}
//
// F3 is the forward of micro-batch 3, B3 its backward, I3 and W3 the backward's two parts; F3.1 is that of
// the rank's chunk 1. Transfers follow from the computations and are not written.
#pragma once
#include <string>

#include "pipeline/schedule.h"

namespace cleave::pipeline {

std::string schedule_to_json(const Schedule& schedule);

// Throws Error(usage) naming `where` for text that is not such a file, and for a schedule that simulate()
// does not prove.
Schedule schedule_from_json(const std::string& text, const std::string& where);
Schedule read_schedule(const std::string& path);

}  // namespace cleave::pipeline
