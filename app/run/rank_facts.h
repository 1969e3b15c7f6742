// Inputs of a training that must be the same on every rank, for comm::require_alike().
#pragma once
#include "app/run/run_options.h"
#include "comm/together.h"

namespace cleave::app {

// Returns the options of a run with the contents of its files: model, weights, tokenizer and data.
// Excludes the ds_config, which a job compares itself, and options that may differ between ranks:
// threads, memory limits, verbosity, and the paths of --metrics and --trace. Data with another path
// are equal if their contents are. Reads at most a few MiB of each file. Error(usage), Error(data).
comm::Facts rank_facts(const RunOptions& options);

}  // namespace cleave::app
