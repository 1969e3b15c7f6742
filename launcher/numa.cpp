#include "launcher/numa.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "launcher/launch_plan.h"

namespace cleave::launcher {
namespace {

std::string as_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t first = 0, last = 0; first < numbers.size(); first = last + 1) {
    for (last = first; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[first]);
    if (last > first) text += fmt::format("-{}", numbers[last]);
  }
  return text;
}

}  // namespace

std::vector<NumaNode> numa_of_machine(const std::string& nodes) {
  constexpr std::string_view kName = "node";
  std::vector<NumaNode> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(nodes, error)) {
    const std::string name = entry.path().filename(),
                      number = name.substr(std::min(kName.size(), name.size()));
    if (!name.starts_with(kName) || number.empty() || number.size() > 6 ||
        number.find_first_not_of("0123456789") != number.npos)
      continue;
    std::string list;  // empty for a node without cores
    if (!(std::ifstream(entry.path() / "cpulist") >> list)) continue;
    found.push_back({std::stoi(number), parse_core_list(list)});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  return found;
}

std::string describe_cores(const std::vector<int>& cores, const std::vector<NumaNode>& numa) {
  std::vector<int> nodes;
  for (const NumaNode& n : numa)
    if (std::any_of(cores.begin(), cores.end(),
                    [&](int c) { return std::count(n.cores.begin(), n.cores.end(), c); }))
      nodes.push_back(n.node);
  const std::string text = fmt::format("core{} {}", cores.size() == 1 ? "" : "s", as_ranges(cores));
  return nodes.empty()
             ? text
             : fmt::format("{} of NUMA node{} {}", text, nodes.size() == 1 ? "" : "s", as_ranges(nodes));
}

}  // namespace cleave::launcher
