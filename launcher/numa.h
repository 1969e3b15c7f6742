// Which of a machine's cores share memory that is near to them.
#pragma once
#include <string>
#include <vector>

namespace cleave::launcher {

struct NumaNode {
  int node = 0;
  std::vector<int> cores = {};
};

// The nodes that the kernel names; nothing where it names none.
std::vector<NumaNode> numa_of_machine(const std::string& nodes = "/sys/devices/system/node");

// "cores 0-3,8 of NUMA node 0"; "cores 2-5 of NUMA nodes 0,1"; without the nodes where none is known.
std::string describe_cores(const std::vector<int>& cores, const std::vector<NumaNode>& numa);

}  // namespace cleave::launcher
