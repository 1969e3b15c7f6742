#include "launcher/rank_gpus.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "device/gpu_problems.h"

namespace cleave::launcher {
namespace {

int device_number(std::string_view text) {
  int n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? n : -1;
}

// Value of --device in a command; empty without it.
std::string_view device_option(const std::vector<std::string>& command) {
  constexpr std::string_view kOption = "--device", kWithValue = "--device=";
  std::string_view value;
  for (size_t i = 0; i < command.size(); ++i) {
    if (command[i].starts_with(kWithValue)) value = std::string_view(command[i]).substr(kWithValue.size());
    if (command[i] == kOption && i + 1 < command.size()) value = command[i + 1];
  }
  return value;
}

// The devices that CUDA shows to the node's ranks, in its order: entries of CUDA_VISIBLE_DEVICES before -1.
std::vector<std::string> visible_devices(const NodeStart& node, const Environment& env, size_t gpus) {
  constexpr const char* kName = "CUDA_VISIBLE_DEVICES";
  std::vector<std::string> all;
  if (node.set_devices) {
    for (const RankStart& r : node.ranks) all.push_back(std::to_string(r.slot));
    return all;
  }
  const auto own = node.environment.find(kName), outer = env.find(kName);
  if (own == node.environment.end() && outer == env.end()) {
    for (size_t i = 0; i < gpus; ++i) all.push_back(std::to_string(i));
    return all;
  }
  all = visible_entries(own == node.environment.end() ? outer->second : own->second);
  all.erase(std::find(all.begin(), all.end(), "-1"), all.end());
  return all;
}

bool order_is_known(const Environment& env, const Topology& t) {
  const auto order = env.find("CUDA_DEVICE_ORDER");
  return (order != env.end() && order->second == "PCI_BUS_ID") ||
         std::all_of(t.gpus.begin(), t.gpus.end(),
                     [&](const GpuPlace& g) { return g.model == t.gpus.front().model; });
}

const GpuPlace* named_gpu(const Topology& t, std::string_view uuid) {
  const auto matches = [&](const GpuPlace& g) { return g.uuid.starts_with(uuid); };
  const auto found = std::find_if(t.gpus.begin(), t.gpus.end(), matches);
  return std::count_if(t.gpus.begin(), t.gpus.end(), matches) == 1 ? &*found : nullptr;
}

// NUMA node of an entry of CUDA_VISIBLE_DEVICES.
int node_of_entry(std::string_view entry, const Environment& env, const Topology& t) {
  constexpr std::string_view kSlice = "MIG-";
  const int number = device_number(entry);
  if (number >= int(t.gpus.size())) return -1;  // CUDA does not show it
  const GpuPlace* gpu = nullptr;
  if (number >= 0) {
    if (order_is_known(env, t)) gpu = &t.gpus[size_t(number)];
  } else {
    if (entry.starts_with(kSlice)) entry.remove_prefix(kSlice.size());
    entry = entry.substr(0, entry.find('/'));
    if (entry.starts_with("GPU-")) gpu = named_gpu(t, entry);
  }
  if (gpu) return gpu->node;
  const int first = t.gpus.front().node;
  const bool same =
      std::all_of(t.gpus.begin(), t.gpus.end(), [&](const GpuPlace& g) { return g.node == first; });
  return same ? first : -1;
}

}  // namespace

std::vector<int> gpu_nodes_of(const NodeStart& node, const Environment& env, const Topology& t) {
  constexpr std::string_view kIndex = "cuda:";
  std::vector<int> nodes;
  for (size_t i = 0; i < node.ranks.size(); ++i) {
    const std::vector<std::string> visible = visible_devices(node, env, t.gpus.size());
    const std::string_view option = device_option(node.ranks[i].command);
    size_t device = i;
    if (option.starts_with(kIndex)) device = size_t(std::max(0, device_number(option.substr(kIndex.size()))));
    const bool on_gpu = !t.gpus.empty() && !visible.empty() && option != "cpu";
    nodes.push_back(on_gpu ? node_of_entry(visible[device % visible.size()], env, t) : -1);
  }
  return nodes;
}

}  // namespace cleave::launcher
