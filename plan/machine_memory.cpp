#include "plan/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "core/error.h"
#include "core/proc_value.h"
#include "core/units.h"

namespace cleave::plan {
namespace {

// The number in a file of one line; nothing when there is none, as where it says "max".
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

int64_t meminfo_available() {
  const std::string value = proc_value("/proc/meminfo", "MemAvailable");
  return value.empty() ? 0 : std::stoll(value) * 1024;
}

// Of this process under cgroup v2; "/" where it has none.
std::string cgroup() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return "/";
}

}  // namespace

AvailableMemory available_memory() {
  AvailableMemory least{meminfo_available(), "MemAvailable in /proc/meminfo"};
  // Every group above this one may have a limit, too. Inside a container its own group is the root.
  for (std::string group = cgroup();; group = group.substr(0, group.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + (group == "/" ? "" : group);
    const auto most = number_in(folder + "/memory.max"), now = number_in(folder + "/memory.current");
    // Pages of files count as used but are given back when needed.
    if (most && now) {
      int64_t cached = 0;
      std::ifstream stat(folder + "/memory.stat");
      for (std::string name; stat >> name;) {
        int64_t bytes = 0;
        if (stat >> bytes; name == "inactive_file" || name == "active_file") cached += bytes;
      }
      const int64_t left = std::max<int64_t>(0, *most - *now + cached);
      if (left < least.bytes) least = {left, folder + "/memory.max"};
    }
    if (group.empty() || group == "/") return least;
  }
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
  require(
      bytes <= there.bytes, Exit::memory,
      "this machine's part of the job, {} of {} ranks, needs {} of its memory, but {} are available ({}); "
      "start fewer ranks here, or see what `cleave plan` with --device_memory and --host_memory says would "
      "help",
      count, plan.mesh.size(), format_bytes(bytes), format_bytes(there.bytes), there.source);
}

}  // namespace cleave::plan
