// CPUs, NUMA nodes and GPUs of a machine, and the share of each local rank. Reads files of the kernel and of
// the NVIDIA driver; does not start CUDA, which is slow.
#pragma once
#include <string>
#include <vector>

namespace cleave::launcher {

struct Cpu {
  int number = 0;
  int core = 0;   // lowest number of the hardware threads of its core
  int node = -1;  // NUMA node; -1: unknown
  bool operator==(const Cpu&) const = default;
};

struct GpuPlace {
  std::string address = {};  // PCI, such as 0000:07:00.0
  std::string uuid = {};     // GPU-...; empty: unknown
  std::string model = {};    // equal for equal GPUs
  int node = -1;             // NUMA node with the GPU's local CPUs; -1: unknown
  bool operator==(const GpuPlace&) const = default;
};

struct Topology {
  std::vector<Cpu> cpus = {};          // online, by number
  std::vector<int> memory_nodes = {};  // NUMA nodes with memory for this process, also without CPUs
  std::vector<GpuPlace> gpus = {};     // GPUs that this process may use, by PCI address
};

// Topology of the machine with /sys, /proc and /dev below `root`. Missing or malformed files make their
// facts unknown. GPUs are empty if the driver's device files do not tell which ones this process may use.
Topology topology_of(const std::string& root = "");

// Cores of a rank (empty: unbound), and the NUMA node of its memory (-1: not bound).
struct RankPlace {
  std::vector<int> cores = {};
  int memory = -1;
  bool operator==(const RankPlace&) const = default;
};

// Places of local ranks on the CPUs of `usable`; `nodes` has the NUMA node of each rank's GPU, -1 without or
// for an unknown one. Ranks of a node share its physical cores evenly, with all threads of each core, in
// order of the ranks. If a node is unknown, or if its usable CPUs give a rank less than half of an equal
// share, all ranks share all cores evenly, in order of the nodes. Cores have the order of their numbers. With
// fewer cores than ranks, ranks share single hardware threads; with fewer of these, all places are empty.
std::vector<RankPlace> share_cores(const Topology& topology, const std::vector<int>& usable,
                                   const std::vector<int>& nodes);

// NUMA node with memory that has all these cores; -1 if they are in several or unknown nodes, or if no other
// node has memory.
int memory_node(const Topology& topology, const std::vector<int>& cores);

// "0-3,8". Numbers ascend.
std::string as_ranges(const std::vector<int>& numbers);
// "0-3,8 of NUMA node 0; memory: node 0", "2-5 of NUMA nodes 0-1"; without nodes if none are known.
std::string describe_place(const RankPlace& place, const Topology& topology);

}  // namespace cleave::launcher
