// Whether this machine has the memory for its share of a job's ranks.
#pragma once
#include <string>

#include "plan/job_plan.h"

namespace cleave::plan {

// Bytes that processes may still take here: what the kernel calls available, or less where a control group of
// version 2 or 1 says so.
struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;
};
AvailableMemory available_memory(const std::string& proc = "/proc",
                                 const std::string& mount = "/sys/fs/cgroup");

// What a rank takes; of one that was not tried, what those of its stage take.
const RankPlan& plan_of_rank(const JobPlan& plan, int rank);

// What ranks [first, first + count) take together of the memory of a machine, or with that of its devices.
int64_t bytes_of(const JobPlan& plan, int first, int count, bool with_device);

// Ranks [first, first + count) share this machine: Error(memory) when they need more than is available.
// `with_device`: they compute on the CPU, where device memory is the machine's.
void require_machine_fit(const JobPlan& plan, int first, int count, bool with_device);

}  // namespace cleave::plan
