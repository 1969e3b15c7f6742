// Offload as the configuration asks for it, as values.
#pragma once
#include "config_schema/ds_config.h"
#include "offload/placement.h"

namespace cleave {

// Of a rank's training state; the rank appears in messages.
Placement placement(const DsConfig& config, int rank);

}  // namespace cleave
