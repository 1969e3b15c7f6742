// The files of a training run: what it reads, and every place that it will write to.
#pragma once
#include <string>

#include "app/output_paths.h"
#include "app/run/run_options.h"
#include "config_schema/ds_config.h"

namespace cleave::app {

// The paths that all `world` ranks write.
OutputPaths paths_of(const RunOptions& options, const config::DsConfig& config, int world);

// A sentence when the folder of checkpoints has not the space for one of so many parameters; else empty.
std::string warning_of_little_space(const RunOptions& options, const config::DsConfig& config,
                                    int64_t params);

}  // namespace cleave::app
