// Position of a run in its training data. Checkpoints contain it, so that a resumed run with
// another batch size neither skips nor repeats samples.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "app/run/run_parts.h"

namespace cleave::app {

// Returns the entry "position" in the facts of a run: the position before the engine's next step.
nlohmann::json position_facts(const RunParts& run);

// Continues at the position of the resumed checkpoint; without one, at the position of its step and
// batch size. Error(usage) if --epochs sets the length and the batch size has changed.
void continue_data(RunParts& run);

}  // namespace cleave::app
