// Reads and writes user-defined schedules as small JSON files:
//
//   {"stages": 2, "micro_batches": 2, "virtual_stages": 1,
//    "ranks": ["F0 F1 B0 B1",
//              "F0 B0 F1 B1"]}
//
// F3 is the forward of micro-batch 3, B3 its backward, I3 and W3 the two parts of the backward; F3.1 is for
// chunk 1 of the rank. Transfers follow from the computations and are not written.
#pragma once
#include <string>

#include "pipeline/schedule.h"

namespace cleave::pipeline {

std::string schedule_to_json(const Schedule& schedule);

// Throws Error(usage) with `where` if the text is not a schedule file, or if simulate() rejects the schedule.
Schedule schedule_from_json(const std::string& text, const std::string& where);
Schedule read_schedule(const std::string& path);

}  // namespace cleave::pipeline
