// Detects bucket sizes that split a step's messages into so small pieces that latency dominates.
#pragma once
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "plan/job_plan.h"

namespace cleave::app {

// Returns a sentence, with the count, for each key of the configuration that makes this rank exceed
// 10,000 calls per step.
std::vector<std::string> warnings_of_many_calls(const config::ZeroConfig& zero, const plan::RankPlan& rank);

}  // namespace cleave::app
