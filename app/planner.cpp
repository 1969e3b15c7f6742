#include "app/planner.h"

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/units.h"

namespace cleave::app {

Planner::Planner(model::ModelConfig shape, const ModelOptions& model, int world, config::ReadOptions options,
                 int ranks_per_node, Device device)
    : shape_(std::move(shape)),
      model_(model),
      world_(world),
      ranks_per_node_(ranks_per_node),
      options_(std::move(options)),
      device_(device) {}

plan::EngineMaker Planner::maker(const config::DsConfig& config) const {
  return [this, &config](comm::Communicator& ranks, runtime::EngineOptions options) {
    options.device = device_;
    const runtime::ModelFactory cut = [&](const model::Axes& axes) {
      return model::make_model(shape_, runtime::model_dtype(config), model_.seq_len, model_.model, axes);
    };
    return std::make_unique<runtime::Engine>(config, cut, ranks, options);
  };
}

plan::Candidate Planner::plan(const std::string& text, const config::DsConfig& config,
                              plan::PlanRanks ranks) const {
  return {.text = text,
          .config = config,
          .plan = plan::plan_job(config, world_, maker(config), ranks, ranks_per_node_),
          .change = {}};
}

plan::TryConfig Planner::candidates() const {
  return [this](const std::string& text, bool every_rank) -> std::optional<plan::Candidate> {
    const config::ReadResult read = config::read_ds_config(text, "changed ds_config", options_);
    if (!read.ok()) return std::nullopt;
    try {
      return plan(text, read.config, every_rank ? plan::PlanRanks::all : plan::PlanRanks::of_stages);
    } catch (const Error& e) {
      if (e.exit() == Exit::usage) return std::nullopt;  // the job cannot be laid out so
      throw;
    }
  };
}

void Planner::require_fit(const plan::Candidate& candidate, const MemoryLimits& limits) const {
  try {
    candidate.plan.check_fits(limits);
  } catch (const Error& e) {
    if (e.exit() != Exit::memory) throw;
    fail(Exit::memory, "{}\n{}", e.what(),
         plan::format_changes(candidate, plan::changes_that_fit(candidate, limits, candidates())));
  }
}

namespace {

// The number in a file of one line; nothing when there is none, as where it says "max".
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

int64_t meminfo_available() {
  std::ifstream in("/proc/meminfo");
  for (std::string name, unit; in >> name;) {
    int64_t kib = 0;
    if (in >> kib; name == "MemAvailable:") return kib * 1024;
    std::getline(in, unit);
  }
  return 0;
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

const plan::RankPlan& plan_of_rank(const plan::JobPlan& plan, int rank) {
  const plan::RankPlan* alike = nullptr;
  for (const plan::RankPlan& r : plan.ranks) {
    if (std::find(r.ranks.begin(), r.ranks.end(), rank) != r.ranks.end()) return r;
    if (!alike && r.place.pipe == plan.mesh.place(rank).pipe) alike = &r;
  }
  CHECK(alike, "the plan has no rank like {}", rank);
  return *alike;
}

void require_machine_fit(const plan::JobPlan& plan, int first, int count, bool with_device) {
  int64_t bytes = 0;
  for (int rank = first; rank < first + count; ++rank) {
    const MemoryTable& mine = plan_of_rank(plan, rank).memory;
    bytes += mine.total(MemoryKind::pinned) + mine.total(MemoryKind::host) +
             (with_device ? mine.total(MemoryKind::device) : 0);
  }
  const AvailableMemory there = available_memory();
  require(
      bytes <= there.bytes, Exit::memory,
      "this machine's part of the job, {} of {} ranks, needs {} of its memory, but {} are available ({}); "
      "start "
      "fewer ranks here, or see what `cleave plan` with --device_memory and --host_memory says would help",
      count, plan.mesh.size(), format_bytes(bytes), format_bytes(there.bytes), there.source);
}

}  // namespace cleave::app
