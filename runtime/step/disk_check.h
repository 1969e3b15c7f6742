// Whether the disks that a job keeps training state on have room for it, and how fast they are.
#pragma once
#include "runtime/step/ranks.h"

namespace cleave::runtime {

// Collective. `planned` is this rank's memory. Folders that are not there are made. Throws Error(usage) or
// Error(memory) on every rank when the folder of one cannot be used, or what all ranks plan to keep on one
// file system is not free there. Measures the disks; returns what to say of them, a line a folder, and of one
// that is not used, as what goes there has room in memory; empty where no state goes to disk.
std::string check_disks(const Settings& settings, const MemoryTable& planned, Ranks& ranks);

}  // namespace cleave::runtime
