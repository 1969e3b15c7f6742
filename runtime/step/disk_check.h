// Checks the space and measures the speed of the disks that hold a job's training state.
#pragma once
#include "runtime/step/ranks.h"

namespace cleave::runtime {

// Collective. `planned` is this rank's memory. Creates missing folders. Throws Error(usage) or Error(memory)
// on every rank if a folder is unusable on one rank, or if a file system lacks the free space that all ranks
// plan to use there. Measures the disks and returns their report, one line per folder, including folders that
// stay unused because their state fits in memory. Empty if no state goes to disk.
std::string check_disks(const Settings& settings, const MemoryTable& planned, Ranks& ranks);

}  // namespace cleave::runtime
