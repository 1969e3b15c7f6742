#include "plan/unit_plan.h"

#include "comm/planned.h"
#include "config/ds_config.h"

namespace cleave::plan {

JobPlan plan_units(const config::DsConfig& config, const std::string& model,
                   const std::vector<UnitSpec>& units, runtime::UnitOptions options, int world,
                   PlanRanks which) {
  require(config.pipeline.stages == 1, Exit::usage,
          "pipeline.stages is {}, and the plan of {} is of one stage, which has all of its layers: set 1",
          config.pipeline.stages, model);
  options.engine.dry = true;
  options.engine.limits = {};
  JobPlan plan;
  plan.model = model, plan.counts_sent = false;
  std::vector<int> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const auto ranks = comm::planned_communicator(order[i], world);
    const runtime::UnitEngine engine(config, model, units, *ranks, options);
    if (i == 0) {
      plan.mesh = engine.mesh(), plan.params = engine.params();
      for (const UnitSpec& u : units)
        for (const ParamSpec& p : u.params) plan.frozen += u.frozen ? p.whole_numel() : 0;
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
