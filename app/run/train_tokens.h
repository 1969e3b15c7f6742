#pragma once
#include <functional>

#include "app/run/run_options.h"
#include "launcher/job.h"

namespace cleave::app {

// Puts token files instead of the texts among --data and --eval_data, where there is a tokenizer for
// them; then `connect` was called, which connects the job, and true is returned. Remembers the texts and the
// tokenizer in the options. Error(usage), before anything is started, when the tokenizer has more ids than
// the model; Error(data) for a text that cannot be read.
bool tokenize_inputs(RunOptions& options, launcher::Job& job, const std::function<void()>& connect);

}  // namespace cleave::app
