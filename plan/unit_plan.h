// The plan of a job whose layers run elsewhere (runtime/unit_engine.h): what its engines take, which is all
// that they allocate themselves. What they send depends on who drives them, and is not counted.
#pragma once
#include <string>
#include <vector>

#include "plan/job_plan.h"
#include "runtime/unit_engine.h"

namespace cleave::plan {

// Of units that every rank declares alike: Error(usage) with more than one stage of a pipeline. As plan_job.
JobPlan plan_units(const config::DsConfig& config, const std::string& model,
                   const std::vector<UnitSpec>& units, runtime::UnitOptions options, int world,
                   PlanRanks which = PlanRanks::all);

}  // namespace cleave::plan
