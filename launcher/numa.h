// NUMA nodes of a machine and their cores.
#pragma once
#include <string>
#include <vector>

namespace cleave::launcher {

struct NumaNode {
  int node = 0;
  std::vector<int> cores = {};
};

// Nodes that the kernel lists; empty if it lists none.
std::vector<NumaNode> numa_of_machine(const std::string& nodes = "/sys/devices/system/node");

// "cores 0-3,8 of NUMA node 0", "cores 2-5 of NUMA nodes 0,1"; without nodes if none are known.
std::string describe_cores(const std::vector<int>& cores, const std::vector<NumaNode>& numa);

}  // namespace cleave::launcher
