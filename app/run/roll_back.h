// Return to a checkpoint after a bad step, without the data of that step (cleave.non_finite: roll_back).
#pragma once
#include <string>

#include "app/run/run_parts.h"

namespace cleave::app {

bool rolls_back(const config::DsConfig& config);

// Goes back to the newest checkpoint of the run after a step that the engine left out. Its data are skipped
// from now on, and checkpoints contain the skip. Collective. Error(training) if no checkpoint can be used.
void roll_back(RunParts& run, const runtime::StepResult& bad);

// Returns a clause for EngineBase::name_samples.
std::string samples_of(const RunParts& run, const std::optional<runtime::MicroPlace>& micro);

}  // namespace cleave::app
