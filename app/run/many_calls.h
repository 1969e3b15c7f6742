// Detects bucket sizes that split a step's messages into so small pieces that latency dominates.
#pragma once
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "model/layer.h"

namespace cleave::app {

// Returns a sentence, with the count, for each key of the configuration that makes a rank exceed
// 10,000 calls per step. `model` is the whole model; `data_ranks` share its parameters.
std::vector<std::string> warnings_of_many_calls(const config::DsConfig& config, const model::Model& model,
                                                int data_ranks);

}  // namespace cleave::app
