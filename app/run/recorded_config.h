// A training's configuration as JSON that another process reads to the same values, without the data and the
// command line of the run: for records of steps.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "config_schema/read_config.h"

namespace cleave::app {

// Returns the configuration of a job of `world` ranks. Excludes keys of outputs for people and their secrets.
nlohmann::json recorded_config(const config::ReadResult& read, int world);
// Reads it again. Error(checkpoint) with the first key that has another value in this version.
config::DsConfig config_of_record(const nlohmann::json& recorded);

}  // namespace cleave::app
