// How long an epoch is: once through the samples of the training data.
#pragma once
#include <cstdint>

#include "app/run/run_options.h"
#include "config_schema/ds_config.h"

namespace cleave::app {

// The length of an epoch of what --data names, whose texts are token files by now. One file has the epochs of
// data/sampler.h, which end with a step; an epoch of a blend is as many samples as all of its sources have.
// Error(data) as samples_of().
EpochLength epoch_length(const RunOptions& options, const config::DsConfig& config);

// Steps of so many epochs, the last one whole.
int64_t steps_of(double epochs, const EpochLength& length);

// "1234 samples of 64 tokens, 78 steps per epoch; 200 steps are 2.56 epochs".
std::string epoch_value(const RunOptions& options, const EpochLength& length);

}  // namespace cleave::app
