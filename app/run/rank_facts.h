// Inputs of a training that must be the same on every rank, for comm::require_alike().
#pragma once
#include "app/run/run_options.h"
#include "comm/together.h"

namespace cleave::app {

// The options of a run with the contents of its files: model, weights, tokenizer and data. Excludes the
// ds_config, which a job compares itself, and options that each rank may choose: threads, memory limits, how
// much it prints, and the paths of --metrics and --trace. Data under another path are the same if their
// contents are. Reads at most a few MiB of each file. Error(usage), Error(data).
comm::Facts rank_facts(const RunOptions& options);

}  // namespace cleave::app
