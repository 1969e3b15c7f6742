// Plans of one model on a number of ranks, from the text of a ds_config; and whether this machine has the
// memory for its share of them.
#pragma once
#include <string>

#include "app/options.h"
#include "plan/search.h"

namespace cleave::app {

class Planner {
 public:
  // Plans ranks that compute on devices like this one, which need not be here.
  Planner(model::ModelConfig shape, const ModelOptions& model, int world, config::ReadOptions options,
          int ranks_per_node, Device device);

  // The job of a configuration that was read.
  plan::Candidate plan(const std::string& text, const config::DsConfig& config,
                       plan::PlanRanks ranks = plan::PlanRanks::all) const;
  plan::TryConfig candidates() const;
  plan::EngineMaker maker(const config::DsConfig& config) const;  // the configuration must outlive it

  // Error(memory) with the table of a rank that does not fit, and the changes of the configuration that would
  // make it fit.
  void require_fit(const plan::Candidate& candidate, const MemoryLimits& limits) const;

 private:
  model::ModelConfig shape_;
  ModelOptions model_;
  int world_, ranks_per_node_;
  config::ReadOptions options_;
  Device device_;
};

// Bytes that processes may still take here: what the kernel calls available, or less where a cgroup says so.
struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;
};
AvailableMemory available_memory();

// What a rank takes; of one that was not tried, what those of its stage take.
const plan::RankPlan& plan_of_rank(const plan::JobPlan& plan, int rank);

// Ranks [first, first + count) share this machine: Error(memory) when they need more than is available.
// `with_device`: they compute on the CPU, where device memory is the machine's.
void require_machine_fit(const plan::JobPlan& plan, int first, int count, bool with_device);

}  // namespace cleave::app
