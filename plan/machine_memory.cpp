#include "plan/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/proc_value.h"
#include "core/process_memory.h"
#include "core/units.h"

namespace cleave::plan {
namespace {

// Returns the number in a file of one line, or nothing, for example for "max".
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

// File names of a control group version, and the prefix in memory.stat for sums over all subgroups.
struct Names {
  const char *most, *now, *stat_prefix;
};
constexpr Names kVersion2{"memory.max", "memory.current", ""},
    kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};

// A control group of this process that may limit its memory.
struct Group {
  std::string mount, path;
  Names names;
};

std::vector<Group> groups_of_process(const std::string& proc, const std::string& mount) {
  std::vector<Group> found;
  std::ifstream in(proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // number:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    if (controllers.empty()) {
      found.push_back({mount, path, kVersion2});
      found.push_back({mount + "/unified", path, kVersion2});
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      found.push_back({mount + "/" + controllers, path, kVersion1});
    }
  }
  return found;
}

// Returns the remaining memory of a group with a limit. File pages count as used, but are reclaimable.
std::optional<AvailableMemory> left_in(const std::string& folder, const Names& names) {
  const std::string limit = folder + "/" + names.most;
  const auto most = number_in(limit), now = number_in(folder + "/" + names.now);
  if (!most || !now) return {};
  int64_t cached = 0, bytes = 0;
  std::ifstream stat(folder + "/memory.stat");
  const std::string prefix = names.stat_prefix;
  for (std::string name; stat >> name >> bytes;)
    if (name == prefix + "inactive_file" || name == prefix + "active_file") cached += bytes;
  // Counters are read one after another, so the cache may exceed the usage; no limit is almost INT64_MAX.
  const int64_t held = std::max<int64_t>(0, *now - cached);
  return AvailableMemory{std::max<int64_t>(0, *most - held), limit};
}

}  // namespace

AvailableMemory available_memory(const std::string& proc, const std::string& mount) {
  const std::string kernels = proc_value((proc + "/meminfo").c_str(), "MemAvailable");
  AvailableMemory least{kernels.empty() ? 0 : std::stoll(kernels) * 1024, "MemAvailable in /proc/meminfo"};
  // Every ancestor group may have a limit as well. Inside a container the own group is the root.
  for (const Group& mine : groups_of_process(proc, mount))
    for (std::string group = mine.path;; group = group.substr(0, group.rfind('/'))) {
      const auto left = left_in(mine.mount + (group == "/" ? "" : group), mine.names);
      if (left && left->bytes < least.bytes) least = *left;
      if (group.empty() || group == "/") break;
    }
  return least;
}

std::string memory_use_of(const runtime::EngineBase& engine) {
  const MemoryTable now = engine.memory_live(), peak = engine.memory_peak();
  const ProcessMemory process = process_memory();
  return fmt::format(
      "memory of rank 0 after step {} (peak of its allocations, and now):\n{}  resident in this process: {}, "
      "at most {}; available on this machine: {}",
      engine.step(), format(peak, &now), format_bytes(process.resident), format_bytes(process.peak_resident),
      format_bytes(available_memory().bytes));
}

const RankPlan& plan_of_rank(const JobPlan& plan, int rank) {
  const RankPlan* alike = nullptr;
  for (const RankPlan& r : plan.ranks) {
    if (std::find(r.ranks.begin(), r.ranks.end(), rank) != r.ranks.end()) return r;
    if (!alike && r.place.pipe == plan.mesh.place(rank).pipe) alike = &r;
  }
  CHECK(alike, "the plan has no rank like {}", rank);
  return *alike;
}

int64_t bytes_of(const JobPlan& plan, int first, int count, bool with_device) {
  int64_t bytes = 0;
  for (int rank = first; rank < first + count; ++rank) {
    const MemoryTable& mine = plan_of_rank(plan, rank).memory;
    bytes += mine.total(MemoryKind::pinned) + mine.total(MemoryKind::host) +
             (with_device ? mine.total(MemoryKind::device) : 0);
  }
  return bytes;
}

void require_machine_fit(const JobPlan& plan, int first, int count, bool with_device) {
  const int64_t bytes = bytes_of(plan, first, count, with_device);
  const AvailableMemory there = available_memory();
  require(bytes <= there.bytes, Exit::memory,
          "host memory: {} of {} ranks on this machine need {}, but {} are available ({}); start fewer ranks "
          "here, or run `cleave plan` with --device_memory and --host_memory for suggestions",
          count, plan.mesh.size(), format_bytes(bytes), format_bytes(there.bytes), there.source);
}

}  // namespace cleave::plan
