// Input and output files of a training run.
#pragma once
#include <string>

#include "app/output_paths.h"
#include "app/run/run_options.h"
#include "config_schema/ds_config.h"

namespace cleave::app {

// Returns the paths that all `world` ranks use.
OutputPaths paths_of(const RunOptions& options, const config::DsConfig& config, int world);

// Returns a warning if the folder of checkpoints has not enough space for one of this many
// parameters; otherwise an empty string.
std::string warning_of_little_space(const RunOptions& options, const config::DsConfig& config,
                                    int64_t params);

}  // namespace cleave::app
