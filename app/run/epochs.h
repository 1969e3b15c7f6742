// Length of an epoch: every sample of the training data once.
#pragma once
#include <cstdint>

#include "app/run/run_options.h"
#include "config_schema/ds_config.h"

namespace cleave::app {

// Returns the epoch length of --data, after texts became token files. One file has the epochs of
// data/sampler.h, which end with a step; an epoch of a blend has as many samples as all of its
// sources. Error(data) as samples_of().
EpochLength epoch_length(const RunOptions& options, const config::DsConfig& config);

// Returns the number of steps in `epochs`, rounded up to whole steps.
int64_t steps_of(double epochs, const EpochLength& length);

// Returns, for example, "1234 samples of 64 tokens, 78 steps per epoch; 200 steps are 2.56 epochs".
std::string epoch_value(const RunOptions& options, const EpochLength& length);

}  // namespace cleave::app
