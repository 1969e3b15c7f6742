// The position of a run in its training data: a checkpoint keeps it, so that a resumed run whose steps have
// another number of samples neither skips nor repeats any.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "app/run/run_parts.h"

namespace cleave::app {

// The position before the engine's next step, as the facts of a run have it under "position".
nlohmann::json position_facts(const RunParts& run);

// Continues at the position of the checkpoint that was resumed; a checkpoint without one has that of its step
// and the batch it was trained with. Error(usage) if --epochs says how long a training is whose batch has
// changed.
void continue_data(RunParts& run);

}  // namespace cleave::app
