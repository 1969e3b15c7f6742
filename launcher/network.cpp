#include "launcher/network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/timex.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "comm/device_group.h"
#include "core/proc_value.h"
#include "core/units.h"
#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

namespace fs = std::filesystem;

// Names in a folder, in order.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<InfiniBandPort> ports_of(const fs::path& folder) {
  std::vector<InfiniBandPort> ports;
  for (const std::string& device : names_in(folder))
    for (const std::string& port : names_in(folder / device / "ports")) {
      const fs::path files = folder / device / "ports" / port;
      const std::string state = first_line(files / "state");  // "4: ACTIVE"
      const size_t word = state.find(": ");
      ports.push_back({.device = device,
                       .port = std::atoi(port.c_str()),
                       .state = word == state.npos ? state : state.substr(word + 2),
                       .rate = first_line(files / "rate"),
                       .link = first_line(files / "link_layer")});
    }
  return ports;
}

int infiniband_adapters(const fs::path& bus) {
  int adapters = 0;
  for (const std::string& address : names_in(bus))
    adapters += first_line(bus / address / "class").starts_with("0x0207");
  return adapters;
}

// The soft limit, unless this process has CAP_IPC_LOCK.
std::optional<int64_t> locked_memory(const std::string& proc) {
  constexpr int kIpcLock = 14;
  const std::string capabilities = proc_value((proc + "/self/status").c_str(), "CapEff:");
  if (std::strtoull(capabilities.c_str(), nullptr, 16) >> kIpcLock & 1) return {};
  constexpr std::string_view kName = "Max locked memory";
  std::ifstream limits(proc + "/self/limits");
  for (std::string line; std::getline(limits, line);) {
    if (!line.starts_with(kName)) continue;
    std::string limit;
    std::istringstream(line.substr(kName.size())) >> limit;
    if (limit == "unlimited") return {};
    return std::strtoll(limit.c_str(), nullptr, 10);
  }
  return {};
}

// Lines NAME=value; # starts a comment.
Environment settings_in(const std::string& path) {
  Environment settings;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (const size_t equals = line.find('='); equals != line.npos && !line.starts_with('#'))
      settings[line.substr(0, equals)] = line.substr(equals + 1);
  return settings;
}

// NCCL uses DMA-BUF with the open driver since Linux 5.12.
bool has_dma_buf(const std::string& proc) {
  if (first_line(proc + "/driver/nvidia/version").find("Open Kernel Module") == std::string::npos)
    return false;
  int major = 0, minor = 0;
  char dot = 0;
  std::istringstream(first_line(proc + "/sys/kernel/osrelease")) >> major >> dot >> minor;
  return major > 5 || (major == 5 && minor >= 12);
}

// A list as in NCCL_SOCKET_IFNAME and NCCL_IB_HCA: prefixes, or names after "=", or the others after "^".
class NameList {
 public:
  explicit NameList(std::string_view text) {
    others_ = text.starts_with('^');
    text.remove_prefix(others_);
    exact_ = text.starts_with('=');
    text.remove_prefix(exact_);
    std::istringstream names{std::string(text)};
    for (std::string name; std::getline(names, name, ',');)
      if (!name.empty()) names_.push_back(name);
  }

  // A name in the list may end with a port, as in mlx5_0:1.
  bool takes(const std::string& name, int port = -1) const {
    const bool found = std::any_of(names_.begin(), names_.end(), [&](const std::string& listed) {
      const size_t colon = port < 0 ? listed.npos : listed.find(':');
      const std::string only = listed.substr(0, colon);
      const bool its_port = colon == listed.npos || listed.substr(colon + 1) == std::to_string(port);
      return its_port && (exact_ ? name == only : name.starts_with(only));
    });
    return names_.empty() || found != others_;
  }

 private:
  bool others_ = false, exact_ = false;
  std::vector<std::string> names_;
};

std::string named(const InfiniBandPort& p) { return fmt::format("{}:{}", p.device, p.port); }

std::string joined(const std::vector<InfiniBandPort>& ports, bool with_state) {
  std::vector<std::string> names;
  for (const InfiniBandPort& p : ports)
    names.push_back(with_state ? fmt::format("{} {}", named(p), p.state) : named(p));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Problems of InfiniBand on a host with usable ports. `used`: those that NCCL_IB_HCA selects.
void check_ports(const HostNetwork& host, const std::vector<InfiniBandPort>& used,
                 std::vector<NetworkProblem>& problems) {
  constexpr int64_t kEnough = int64_t{4}
                              << 30;  // buffers of NCCL, far above the usual limits of 64 KiB to 8 MiB
  std::vector<InfiniBandPort> down;
  std::copy_if(used.begin(), used.end(), std::back_inserter(down),
               [](const InfiniBandPort& p) { return p.state != "ACTIVE"; });
  if (!host.device_files)
    problems.push_back(
        {NetworkCheck::device_files,
         "InfiniBand: /dev/infiniband is missing, so NCCL uses sockets; start the container with "
         "--device /dev/infiniband"});
  if (!down.empty())
    problems.push_back(
        {NetworkCheck::ports,
         fmt::format(
             "InfiniBand: {} of {} ports are not active (got {}, expected ACTIVE); check cables and the "
             "subnet manager (ibstat), or select other ports with NCCL_IB_HCA",
             down.size(), used.size(), joined(down, true))});
  if (host.locked_memory && *host.locked_memory < kEnough)
    problems.push_back(
        {NetworkCheck::locked_memory,
         fmt::format(
             "ulimit -l: not enough locked memory for InfiniBand (got {}, expected unlimited); set memlock "
             "in /etc/security/limits.conf, LimitMEMLOCK of the service that starts ranks, or --ulimit "
             "memlock=-1 of the container",
             format_bytes(*host.locked_memory))});
  if (host.gpu_driver && !host.gpu_direct)
    problems.push_back(
        {NetworkCheck::gpu_direct,
         "GPUDirect: the module nvidia_peermem is not loaded, so messages between hosts are copied "
         "through host memory; load it: sudo modprobe nvidia_peermem"});
}

void check_infiniband(const HostNetwork& host, const Variables& v, std::vector<NetworkProblem>& problems) {
  const std::string adapters = v.text("NCCL_IB_HCA");
  std::vector<InfiniBandPort> used;
  std::copy_if(host.ports.begin(), host.ports.end(), std::back_inserter(used),
               [list = NameList(adapters)](const InfiniBandPort& p) { return list.takes(p.device, p.port); });
  if (v.has("NCCL_IB_DISABLE") && v.text("NCCL_IB_DISABLE") != "0") {
    if (!host.ports.empty())
      problems.push_back(
          {NetworkCheck::disabled,
           fmt::format("NCCL_IB_DISABLE={}: NCCL uses sockets instead of InfiniBand (the host has {}); "
                       "unset it",
                       v.text("NCCL_IB_DISABLE"), joined(host.ports, false))});
  } else if (host.ports.empty() && host.adapters > 0) {
    problems.push_back(
        {NetworkCheck::driver,
         fmt::format("InfiniBand: {} adapter{} without a driver; load it: sudo modprobe mlx5_ib",
                     host.adapters, host.adapters == 1 ? "" : "s")});
  } else if (used.empty() && !host.ports.empty()) {
    problems.push_back(
        {NetworkCheck::adapters,
         fmt::format("NCCL_IB_HCA: matches no InfiniBand port (got {}, expected some of {}); correct "
                     "it, or unset it",
                     adapters, joined(host.ports, false))});
  } else if (!used.empty()) {
    check_ports(host, used, problems);
  }
}

}  // namespace

HostNetwork network_of(const std::string& root) {
  const std::string proc = root + "/proc", sys = root + "/sys";
  std::error_code error;
  const auto exists = [&](const std::string& path) { return fs::exists(path, error); };
  timex time{};
  return {.interfaces = names_in(sys + "/class/net"),
          .ports = ports_of(sys + "/class/infiniband"),
          .adapters = infiniband_adapters(sys + "/bus/pci/devices"),
          .device_files = exists(root + "/dev/infiniband"),
          .locked_memory = locked_memory(proc),
          .gpu_driver = exists(proc + "/driver/nvidia/version"),
          .gpu_direct = exists(sys + "/module/nvidia_peermem") || exists(sys + "/module/nv_peer_mem") ||
                        has_dma_buf(proc),
          .nccl_conf = settings_in(root + "/etc/nccl.conf"),
          .clock = adjtimex(&time) != TIME_ERROR};
}

std::vector<NetworkProblem> network_problems(const HostNetwork& host, const Environment& env) {
  Environment settings = env;
  settings.insert(host.nccl_conf.begin(), host.nccl_conf.end());
  const Variables v(settings);
  std::vector<NetworkProblem> problems;
  const std::string names = v.text("NCCL_SOCKET_IFNAME");
  const NameList list(names);
  const bool some = std::any_of(host.interfaces.begin(), host.interfaces.end(),
                                [&](const std::string& name) { return list.takes(name); });
  if (!names.empty() && !some)
    problems.push_back(
        {NetworkCheck::interfaces,
         fmt::format("NCCL_SOCKET_IFNAME: matches no network interface (got {}, expected some of {}); "
                     "correct it, or unset it",
                     names, fmt::join(host.interfaces, ", "))});
  check_infiniband(host, v, problems);
  if (!host.clock)
    problems.push_back(
        {NetworkCheck::clock,
         "clock: not synchronized with other hosts, so their times in a trace drift apart; start "
         "chrony or another NTP service"});
  return problems;
}

std::vector<std::string> agreed_warnings(comm::Communicator& world,
                                         const std::vector<NetworkProblem>& problems, int hosts) {
  int64_t mine = 0;
  for (const NetworkProblem& p : problems) mine |= int64_t{1} << int(p.check);
  comm::TransportAccess* const transport = world.transport();
  const std::vector<int64_t> all =
      transport ? transport->exchange(mine, "network checks") : std::vector{mine};
  std::vector<std::string> warnings;
  for (const NetworkProblem& p : problems) {
    const auto has = [&](int64_t mask) { return (mask >> int(p.check) & 1) != 0; };
    if (std::find_if(all.begin(), all.end(), has) - all.begin() != world.rank()) continue;
    warnings.push_back(
        fmt::format("{} (on {} of {} hosts)", p.text, std::count_if(all.begin(), all.end(), has), hosts));
  }
  return warnings;
}

}  // namespace cleave::launcher
