// Plans one model on a number of ranks, from the text of a ds_config.
#pragma once
#include <string>

#include "app/options.h"
#include "plan/search.h"

namespace cleave::app {

class Planner {
 public:
  // Plans for devices like this one, which need not exist on this machine.
  Planner(model::ModelConfig shape, const ModelOptions& model, int world, config::ReadOptions options,
          int ranks_per_node, Device device);

  // Returns the job of a parsed configuration.
  plan::Candidate plan(const std::string& text, const config::DsConfig& config,
                       plan::PlanRanks ranks = plan::PlanRanks::all) const;
  plan::TryConfig candidates() const;
  plan::EngineMaker maker(const config::DsConfig& config) const;  // the configuration must outlive it

  // Error(memory) with the table of a rank that does not fit, unless it is printed already, and
  // configuration changes that would fit.
  void require_fit(const plan::Candidate& candidate, const MemoryLimits& limits,
                   bool with_table = true) const;

 private:
  model::ModelConfig shape_;
  ModelOptions model_;
  int world_, ranks_per_node_;
  config::ReadOptions options_;
  Device device_;
};

}  // namespace cleave::app
