// What a configuration says to a job that trains nothing.
#pragma once
#include "config_schema/ds_config.h"

namespace cleave {

// The same layout, type and homes of weights, without what only training has: gradients and their sums,
// optimizer state and its homes, accumulation, recomputation. ZeRO stages below 3 differ in nothing else, so
// they become 0, and nested shards lie among near ranks as hybrid ones do.
DsConfig inference_config(DsConfig config);

}  // namespace cleave
