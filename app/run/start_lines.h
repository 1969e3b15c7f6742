// What a training run says first.
#pragma once
#include <string>
#include <vector>

#include "app/run/run_options.h"
#include "config_schema/read_config.h"
#include "runtime/engine.h"

namespace cleave::app {

// One line when quiet, every key and the whole table when verbose, else at most twelve lines with what
// differs from the defaults. `transport` and `threads` are Job's.
std::vector<std::string> start_lines(const runtime::Engine& engine, const std::string& transport,
                                     const std::string& threads, const RunOptions& options,
                                     const EpochLength& epoch, const config::ReadResult& config);

}  // namespace cleave::app
