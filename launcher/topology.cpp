#include "launcher/topology.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "core/proc_value.h"
#include "launcher/machine.h"

namespace cleave::launcher {
namespace {

namespace fs = std::filesystem;

std::optional<int> number_of(std::string_view text, int base = 10) {
  int n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return n;
}

// Numbers of a kernel list such as "0-3,8"; empty if it is malformed.
std::vector<int> listed(std::string_view text) {
  constexpr int kMost = 1 << 16;
  std::vector<int> numbers;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const size_t dash = part.find('-');
    const auto first = number_of(part.substr(0, dash));
    const auto last = dash == part.npos ? first : number_of(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMost) return {};
    for (int n = *first; n <= *last; ++n) numbers.push_back(n);
  }
  return numbers;
}

// Entries "nameN" of a folder, by N.
std::map<int, fs::path> numbered(const fs::path& folder, std::string_view name) {
  std::map<int, fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string text = entry.path().filename();
    if (!text.starts_with(name)) continue;
    if (const auto n = number_of(std::string_view(text).substr(name.size())); n && *n >= 0)
      found[*n] = entry.path();
  }
  return found;
}

void read_cpus(const std::string& root, Topology& t) {
  std::map<int, int> node_of;
  const fs::path nodes = root + "/sys/devices/system/node";
  t.memory_nodes = listed(first_line(nodes / "has_memory"));
  if (const std::string text = proc_value((root + "/proc/self/status").c_str(), "Mems_allowed_list");
      !text.empty())
    std::erase_if(t.memory_nodes, [allowed = listed(text)](int node) {
      return std::find(allowed.begin(), allowed.end(), node) == allowed.end();
    });
  for (const auto& [node, folder] : numbered(nodes, "node"))
    for (const int cpu : listed(first_line(folder / "cpulist"))) node_of[cpu] = node;
  const fs::path cpus = root + "/sys/devices/system/cpu";
  for (const int number : listed(first_line(cpus / "online"))) {
    const fs::path folder = cpus / fmt::format("cpu{}", number);
    const std::vector<int> threads = listed(first_line(folder / "topology/thread_siblings_list"));
    const auto node = node_of.find(number);
    t.cpus.push_back({.number = number,
                      .core = threads.empty() ? number : threads.front(),
                      .node = node == node_of.end() ? -1 : node->second});
  }
}

// The node of these CPUs; -1 if they have none or several.
int common_node(const Topology& t, const std::vector<int>& cpus) {
  std::set<int> nodes;
  for (const int number : cpus) {
    const auto cpu =
        std::find_if(t.cpus.begin(), t.cpus.end(), [&](const Cpu& c) { return c.number == number; });
    nodes.insert(cpu == t.cpus.end() ? -1 : cpu->node);
  }
  return nodes.size() == 1 ? *nodes.begin() : -1;
}

// A GPU that is a NUMA node itself has no CPUs for a rank.
int node_of_device(const Topology& t, const fs::path& device) {
  const int node = number_of(first_line(device / "numa_node")).value_or(-1);
  const bool has_cpus =
      std::any_of(t.cpus.begin(), t.cpus.end(), [&](const Cpu& c) { return c.node == node; });
  return node >= 0 && has_cpus ? node : common_node(t, listed(first_line(device / "local_cpulist")));
}

// Domain, bus, device and function, which CUDA sorts by. Domains can have more than four digits.
std::vector<int> address_parts(const std::string& address) {
  std::vector<int> parts;
  for (size_t at = 0; at <= address.size();) {
    const size_t end = std::min(address.find_first_of(":.", at), address.size());
    parts.push_back(number_of(std::string_view(address).substr(at, end - at), 16).value_or(-1));
    at = end + 1;
  }
  return parts;
}

// GPUs of the driver. A container, and a control group of SLURM, hide the device files of other GPUs;
// access() checks this without opening a device.
std::vector<GpuPlace> gpus_of_driver(const std::string& root, const fs::path& folder) {
  std::vector<GpuPlace> gpus;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string file = entry.path() / "information";
    const auto value = [&](const char* name) { return proc_value(file.c_str(), name); };
    const std::string device = root + "/dev/nvidia" + value("Device Minor");
    if (value("GPU Excluded") == "Yes" || access(device.c_str(), R_OK | W_OK) != 0) continue;
    gpus.push_back({.address = entry.path().filename(), .uuid = value("GPU UUID"), .model = value("Model")});
  }
  return gpus;
}

// All NVIDIA GPUs of the PCI bus, for a driver without the files above. Which of them a process may use is
// unknown if device files are missing.
std::vector<GpuPlace> gpus_of_bus(const std::string& root, const fs::path& folder) {
  std::vector<GpuPlace> gpus;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string kind = first_line(entry.path() / "class");
    if (first_line(entry.path() / "vendor") != "0x10de") continue;
    if (!kind.starts_with("0x0300") && !kind.starts_with("0x0302")) continue;  // VGA and 3D controllers
    gpus.push_back({.address = entry.path().filename(), .model = first_line(entry.path() / "device")});
  }
  return int(gpus.size()) == gpus_of_machine(root + "/dev") ? gpus : std::vector<GpuPlace>();
}

void read_gpus(const std::string& root, Topology& t) {
  const fs::path of_driver = root + "/proc/driver/nvidia/gpus", bus = root + "/sys/bus/pci/devices";
  std::error_code error;
  t.gpus = fs::is_directory(of_driver, error) ? gpus_of_driver(root, of_driver) : gpus_of_bus(root, bus);
  for (GpuPlace& gpu : t.gpus) gpu.node = node_of_device(t, bus / gpu.address);
  std::sort(t.gpus.begin(), t.gpus.end(), [](const GpuPlace& a, const GpuPlace& b) {
    return address_parts(a.address) < address_parts(b.address);
  });
}

using Cores = std::vector<std::vector<int>>;  // hardware threads of each core

// Usable CPUs in the order of nodes, cores and numbers.
std::vector<Cpu> in_order(const Topology& t, const std::vector<int>& usable) {
  std::vector<Cpu> cpus;
  for (const int number : usable) {
    const auto known =
        std::find_if(t.cpus.begin(), t.cpus.end(), [&](const Cpu& c) { return c.number == number; });
    cpus.push_back(known == t.cpus.end() ? Cpu{number, number, -1} : *known);
  }
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tuple(a.node, a.core, a.number) < std::tuple(b.node, b.core, b.number);
  });
  return cpus;
}

// Whole cores if there is one per rank, else single threads.
Cores parts_for(size_t ranks, const std::vector<Cpu>& cpus) {
  Cores whole, single;
  for (size_t i = 0; i < cpus.size(); ++i) {
    if (i == 0 || cpus[i].core != cpus[i - 1].core) whole.emplace_back();
    whole.back().push_back(cpus[i].number);
    single.push_back({cpus[i].number});
  }
  return whole.size() >= ranks ? whole : single;
}

// The index-th of `ranks` equal shares; empty if there are fewer CPUs than ranks.
std::vector<int> share_of(const std::vector<Cpu>& cpus, size_t index, size_t ranks) {
  const Cores parts = parts_for(ranks, cpus);
  const size_t each = parts.size() / ranks;
  std::vector<int> share;
  for (size_t i = index * each; i < (index + 1) * each; ++i)
    share.insert(share.end(), parts[i].begin(), parts[i].end());
  std::sort(share.begin(), share.end());
  return share;
}

// Shares in the nodes of the ranks' GPUs; empty if a node is unknown or has too few of the usable CPUs.
std::vector<std::vector<int>> shares_near_gpus(const std::vector<Cpu>& cpus, const std::vector<int>& nodes) {
  std::map<int, std::vector<Cpu>> cpus_of;
  for (const int node : nodes) cpus_of[node] = {};
  if (cpus_of.contains(-1)) return {};
  size_t all = 0;
  for (const Cpu& cpu : cpus)
    if (const auto node = cpus_of.find(cpu.node); node != cpus_of.end()) node->second.push_back(cpu), ++all;
  std::vector<std::vector<int>> shares;
  std::map<int, size_t> begun;
  for (const int node : nodes) {
    shares.push_back(
        share_of(cpus_of[node], begun[node]++, size_t(std::count(nodes.begin(), nodes.end(), node))));
    if (shares.back().empty() || shares.back().size() * 2 < all / nodes.size()) return {};
  }
  return shares;
}

}  // namespace

Topology topology_of(const std::string& root) {
  Topology t;
  read_cpus(root, t);
  read_gpus(root, t);
  return t;
}

std::vector<RankPlace> share_cores(const Topology& t, const std::vector<int>& usable,
                                   const std::vector<int>& nodes) {
  const std::vector<Cpu> cpus = in_order(t, usable);
  std::vector<std::vector<int>> shares = shares_near_gpus(cpus, nodes);
  for (size_t i = shares.size(); i < nodes.size(); ++i) shares.push_back(share_of(cpus, i, nodes.size()));
  std::vector<RankPlace> places;
  for (const std::vector<int>& share : shares) places.push_back({share, memory_node(t, share)});
  return places;
}

int memory_node(const Topology& t, const std::vector<int>& cores) {
  const int node = common_node(t, cores);
  const bool has_memory = std::count(t.memory_nodes.begin(), t.memory_nodes.end(), node) > 0;
  return has_memory && t.memory_nodes.size() > 1 ? node : -1;
}

std::string as_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t first = 0, last = 0; first < numbers.size(); first = last + 1) {
    for (last = first; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[first]);
    if (last > first) text += fmt::format("-{}", numbers[last]);
  }
  return text;
}

std::string describe_place(const RankPlace& place, const Topology& t) {
  std::set<int> nodes;
  for (const int core : place.cores) nodes.insert(common_node(t, {core}));
  std::string text = as_ranges(place.cores);
  if (!nodes.empty() && !nodes.contains(-1))
    text += fmt::format(" of NUMA node{} {}", nodes.size() == 1 ? "" : "s",
                        as_ranges({nodes.begin(), nodes.end()}));
  if (place.memory >= 0) text += fmt::format("; memory: node {}", place.memory);
  return text;
}

}  // namespace cleave::launcher
