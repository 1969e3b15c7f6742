// Values of a configuration for outputs that other people read; values of keys with secret names are masked.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config_schema/read_config.h"

namespace cleave::config {

// Returns the effective value of each key: {"zero_optimization.stage": 2}.
nlohmann::json resolved_values(const ReadResult& read);

// Returns the configuration as its user wrote it, as indented JSON without comments.
std::string shared_text(const ReadResult& read);

}  // namespace cleave::config
