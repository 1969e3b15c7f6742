#include "plan/unit_plan.h"

#include <set>

#include "comm/planned.h"
#include "config_schema/ds_config.h"

namespace cleave::plan {
namespace {

int64_t frozen_params(const std::vector<std::vector<UnitSpec>>& stages) {
  int64_t frozen = 0;
  std::set<std::string> counted;  // stages may share a unit
  for (const std::vector<UnitSpec>& units : stages)
    for (const UnitSpec& u : units)
      if (u.frozen && u.word == 0 && counted.insert(u.name).second)
        for (const ParamSpec& p : u.params) frozen += p.whole_numel();
  return frozen;
}

}  // namespace

JobPlan plan_units(const config::DsConfig& config, const std::string& model,
                   const std::vector<std::vector<UnitSpec>>& stages, runtime::UnitOptions options, int world,
                   PlanRanks which) {
  require(int(stages.size()) == config.pipeline.stages, Exit::usage,
          "pipeline.stages: conflicts with the model (got {}, but {} has its layers in {}); set that, or "
          "remove the key",
          config.pipeline.stages, model, stages.size());
  options.engine.dry = true;
  options.engine.limits = {};
  options.stages = stages;
  JobPlan plan;
  plan.model = model, plan.counts_sent = false, plan.frozen = frozen_params(stages);
  std::vector<int> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const auto ranks = comm::planned_communicator(order[i], world);
    const int stage = i == 0 ? 0 : plan.mesh.place(order[i]).pipe;
    const runtime::UnitEngine engine(config, model, stages[size_t(stage)], *ranks, options);
    if (i == 0) {
      plan.mesh = engine.mesh(), plan.params = engine.params();
      order = ranks_to_try(plan.mesh, which);
      plan.tried_all = int(order.size()) == world;
    }
    plan.add({.ranks = {order[i]},
              .place = plan.mesh.place(order[i]),
              .memory = engine.memory_planned(),
              .sent = {},
              .update = engine.update_bytes()});
  }
  return plan;
}

}  // namespace cleave::plan
