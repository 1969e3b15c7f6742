// Checks that this machine has the memory for its share of a job's ranks.
#pragma once
#include <string>

#include "plan/job_plan.h"

namespace cleave::plan {

// Memory in bytes that processes may still use here: the kernel's available memory, or less if a control
// group (version 1 or 2) limits it.
struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;
};
AvailableMemory available_memory(const std::string& proc = "/proc",
                                 const std::string& mount = "/sys/fs/cgroup");

// Returns the memory of this rank's engine, the first of the job, by category, and that of its process: the
// text of memory_breakdown.
std::string memory_use_of(const runtime::EngineBase& engine);

// Returns the needs of a rank; for an untried rank, those of its stage.
const RankPlan& plan_of_rank(const JobPlan& plan, int rank);

// Returns the bytes that ranks [first, first + count) need together in host memory, and optionally in device
// memory.
int64_t bytes_of(const JobPlan& plan, int first, int count, bool with_device);

// Checks ranks [first, first + count) on this machine; throws Error(memory) if they need more than is
// available. `with_device`: they compute on the CPU, with device memory in host memory.
void require_machine_fit(const JobPlan& plan, int first, int count, bool with_device);

}  // namespace cleave::plan
