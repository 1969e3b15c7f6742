// Environment and cores of a plan's rank on this machine.
#pragma once
#include <vector>

#include "launcher/discovery.h"
#include "launcher/launch_plan.h"

namespace cleave::launcher {

// A rank as it starts on this machine: its whole environment and its cores (empty: unbound). Throws
// Error(usage) if the slot has no GPU; on a machine without GPUs, slots are only ranks.
struct Placed {
  Environment environment;
  std::vector<int> cores;
};
Placed placed_rank(const NodeStart& node, size_t index, int port);

}  // namespace cleave::launcher
