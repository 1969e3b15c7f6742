// The first lines of a training run.
#pragma once
#include <string>
#include <vector>

#include "app/run/run_options.h"
#include "config_schema/read_config.h"
#include "config_schema/summary.h"
#include "runtime/engine.h"

namespace cleave::app {

// `transport` and `threads` are those of Job; `place`: launcher::place_of_process(); `weights`: their origin,
// empty for a resumed run.
struct StartFacts {
  std::string transport, threads, place, weights;
};

// Returns model and weights if quiet; every key and the complete memory table if verbose; otherwise
// at most 17 lines with the keys that differ from their defaults. A line without a name is a note.
std::vector<config::NamedValue> start_lines(const runtime::Engine& engine, const StartFacts& facts,
                                            const RunOptions& options, const EpochLength& epoch,
                                            const config::ReadResult& config);

}  // namespace cleave::app
