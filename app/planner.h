// Plans one model on a number of ranks, from the text of a ds_config.
#pragma once
#include <string>

#include "app/options.h"
#include "plan/search.h"

namespace cleave::app {

class Planner {
 public:
  // Devices like those of the job, which need not exist on this machine. limits: for layers that are chosen
  // to fit (plan/fit_layers.h).
  struct Devices {
    int per_node = 8;
    Device device = {};
    MemoryLimits limits = {};
  };
  Planner(model::ModelConfig shape, const ModelOptions& model, int world, config::ReadOptions options,
          const Devices& devices);

  // Returns the job of a parsed configuration.
  plan::Candidate plan(const std::string& text, config::DsConfig config) const;
  plan::TryConfig candidates() const;
  void fit(config::DsConfig& config) const;                       // as plan::fit_layers
  plan::EngineMaker maker(const config::DsConfig& config) const;  // the configuration must outlive it

  // Error(memory) with the table of a rank that does not fit, unless it is printed already, and
  // configuration changes that would fit.
  void require_fit(const plan::Candidate& candidate, const MemoryLimits& limits,
                   bool with_table = true) const;

 private:
  plan::Candidate plan(const std::string& text, config::DsConfig config, const plan::PlanOptions& how) const;

  model::ModelConfig shape_;
  ModelOptions model_;
  int world_;
  config::ReadOptions options_;
  Devices devices_;
};

}  // namespace cleave::app
