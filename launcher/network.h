// Network of a host for GPUs on several hosts, and settings that slow NCCL or prevent it. Reads files of the
// kernel and of drivers, without NCCL and verbs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launcher/discovery.h"

namespace cleave::launcher {

struct InfiniBandPort {
  std::string device = {};  // mlx5_0
  int port = 1;
  std::string state = {};  // ACTIVE, INIT, DOWN
  std::string rate = {};   // 400 Gb/sec (4X NDR)
  std::string link = {};   // InfiniBand or Ethernet (RoCE)
  bool operator==(const InfiniBandPort&) const = default;
};

struct HostNetwork {
  std::vector<std::string> interfaces = {};
  std::vector<InfiniBandPort> ports = {};
  int adapters = 0;           // InfiniBand adapters on the PCI bus
  bool device_files = false;  // /dev/infiniband exists
  // Limit of locked memory in bytes; empty: unlimited, or this process may ignore it.
  std::optional<int64_t> locked_memory = {};
  bool gpu_driver = false;  // the NVIDIA driver is loaded
  bool gpu_direct = false;  // adapters can reach GPU memory: nvidia_peermem, or DMA-BUF with the open driver
  Environment nccl_conf = {};  // /etc/nccl.conf, for variables that are not set
  bool clock = true;           // the kernel's clock is synchronized with others
};

// The host with /sys, /proc, /dev and /etc below `root`; missing files mean that it has no such part. The
// clock is that of this host.
HostNetwork network_of(const std::string& root = "");

// Kinds of problems. Values are bits of a mask that ranks exchange.
enum class NetworkCheck {
  interfaces,
  locked_memory,
  driver,
  device_files,
  adapters,
  ports,
  disabled,
  gpu_direct,
  clock
};
struct NetworkProblem {
  NetworkCheck check = NetworkCheck::interfaces;
  std::string text = {};  // with the action, without a final period
};
// Problems for a job on several hosts with this environment of its ranks.
std::vector<NetworkProblem> network_problems(const HostNetwork& host, const Environment& env);

// Collective: returns the warnings that this rank prints. Each check is reported by the first rank that has
// it, with the number of hosts that have it. One rank per host passes problems; the others pass none.
std::vector<std::string> agreed_warnings(comm::Communicator& world,
                                         const std::vector<NetworkProblem>& problems, int hosts);

}  // namespace cleave::launcher
