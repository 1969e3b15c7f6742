// Environment and cores of a plan's rank on this machine.
#pragma once
#include <string>

#include "launcher/discovery.h"
#include "launcher/launch_plan.h"

namespace cleave::launcher {

// This machine, for places_of() the node's ranks. A memory policy that the launcher has, and one that the
// kernel rejects, leave memory unbound.
Machine this_machine(const NodeStart& node);

// Place of a rank that another launcher started, near its GPU. Empty if that launcher or a user bound the
// process to some CPUs of the machine, and if the GPU of a local rank is unknown; then its cores stay.
RankPlace adopted_place(const comm::RankInfo& info, const std::vector<std::string>& command,
                        const Environment& env, const Machine& machine);
// Binds this thread, and programs that it starts later.
void take_place(const RankPlace& place);

// Cores and memory node of this process as the kernel has them, set by Cleave or others; empty on a machine
// where one NUMA node has memory. A text for the start-up output.
std::string place_of_process(const Topology& topology = topology_of());

// A rank as it starts on this machine: its whole environment and its place. Throws Error(usage) if the slot
// has no GPU; on a machine without GPUs, slots are only ranks.
struct Placed {
  Environment environment;
  RankPlace place = {};
};
// `place` is that of the rank in places_of(). A rank with more threads in OMP_NUM_THREADS than cores in it is
// unbound.
Placed placed_rank(const NodeStart& node, size_t index, int port, const RankPlace& place);

}  // namespace cleave::launcher
