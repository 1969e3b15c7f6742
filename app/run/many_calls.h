// Bucket sizes that cut the messages of a step into so many calls that their latency is all that is left.
#pragma once
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "model/layer.h"

namespace cleave::app {

// A sentence for each key of the configuration that makes a rank call more than 10,000 times in a step, with
// the count. `model` is whole; `data_ranks` share its parameters.
std::vector<std::string> warnings_of_many_calls(const config::DsConfig& config, const model::Model& model,
                                                int data_ranks);

}  // namespace cleave::app
