// GPUs of a host's ranks, found without CUDA.
#pragma once
#include <vector>

#include "launcher/discovery.h"
#include "launcher/launch_plan.h"
#include "launcher/topology.h"

namespace cleave::launcher {

// NUMA node of the GPU of each of a node's ranks; -1 for a rank without GPU (also with --device cpu) and for
// an unknown one. `env` is the environment of the launcher.
//
// A rank uses the entry of its local rank in CUDA_VISIBLE_DEVICES. Numbers count in CUDA's order: that of PCI
// addresses if CUDA_DEVICE_ORDER=PCI_BUS_ID is set or all GPUs have one model; other orders are unknown.
// UUIDs can be shortened; a MIG slice needs the form MIG-GPU-UUID/I/J. An unknown GPU counts as known if all
// GPUs are in one NUMA node.
std::vector<int> gpu_nodes_of(const NodeStart& node, const Environment& env, const Topology& topology);

}  // namespace cleave::launcher
