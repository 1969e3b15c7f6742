#pragma once
#include <functional>

#include "app/run/run_options.h"
#include "launcher/job.h"

namespace cleave::app {

// Replaces the texts in --data and --eval_data with token files if there is a tokenizer for them;
// then it has called `connect`, which connects the job, and returns true. Records the texts and the
// tokenizer in the options. Error(usage), before anything is started, if the tokenizer has more ids
// than the model; Error(data) for an unreadable text.
bool tokenize_inputs(RunOptions& options, launcher::Job& job, const std::function<void()>& connect);

}  // namespace cleave::app
