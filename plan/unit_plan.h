// Plan of a job with external layers (runtime/unit_engine.h): covers all memory that its engines allocate.
// Messages depend on the external driver and are not counted.
#pragma once
#include <string>
#include <vector>

#include "plan/job_plan.h"
#include "runtime/unit_engine.h"

namespace cleave::plan {

// stages: units that the ranks of each stage declare; one entry without a pipeline. Otherwise as plan_job.
JobPlan plan_units(const config::DsConfig& config, const std::string& model,
                   const std::vector<std::vector<UnitSpec>>& stages, runtime::UnitOptions options, int world,
                   PlanRanks which = PlanRanks::all);

}  // namespace cleave::plan
