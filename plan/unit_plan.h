// The plan of a job whose layers run elsewhere (runtime/unit_engine.h): what its engines take, which is all
// that they allocate themselves. What they send depends on who drives them, and is not counted.
#pragma once
#include <string>
#include <vector>

#include "plan/job_plan.h"
#include "runtime/unit_engine.h"

namespace cleave::plan {

// stages: what the ranks of each stage declare; without a pipeline there is one. As plan_job.
JobPlan plan_units(const config::DsConfig& config, const std::string& model,
                   const std::vector<std::vector<UnitSpec>>& stages, runtime::UnitOptions options, int world,
                   PlanRanks which = PlanRanks::all);

}  // namespace cleave::plan
