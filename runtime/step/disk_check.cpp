#include "runtime/step/disk_check.h"

#include <algorithm>
#include <filesystem>

#include "comm/rendezvous/rank_process.h"
#include "core/units.h"

namespace cleave::runtime {
namespace {

// Space that a rank needs on the file system of one of its folders.
struct Claim {
  int64_t host = 0, file_system = 0, available = 0, wanted = 0;
};

// State folder from the configuration, and its content.
struct Folder {
  std::string path, what, key;
  int64_t wanted;  // bytes needed by this rank
};

// some_weights: true if any rank keeps weights on disk. All ranks check the same folders, so the result is
// equal on every rank.
std::vector<Folder> folders_of(const Settings& s, const MemoryTable& planned, bool some_weights) {
  const int64_t weights = planned.at(MemoryKind::disk, Category::weights);
  const int64_t state = planned.total(MemoryKind::disk) - weights;
  std::vector<Folder> folders;
  const offload::DiskHome &optimizer = s.state_home.disk, &param = s.parameter_disk;
  const bool has_state = s.state_home.optimizer == MemoryKind::disk,
             has_weights = some_weights && s.shard_home.parameters == MemoryKind::disk;
  const bool together = has_state && has_weights && optimizer.folder == param.folder;
  if (has_state)
    folders.push_back({optimizer.folder, together ? "training state" : "the optimizer state", optimizer.key,
                       together ? state + weights : state});
  if (has_weights && !together) folders.push_back({param.folder, "the parameters", param.key, weights});
  return folders;
}

// Returns the reason why the claims of all ranks, one per folder, do not fit; empty if they fit.
std::string refusal_of(const std::vector<Claim>& claims, const std::vector<Folder>& folders) {
  for (size_t i = 0; i < claims.size(); ++i) {
    const Claim& c = claims[i];
    int64_t wanted = 0, ranks = 0;
    for (size_t j = 0; j < claims.size(); ++j)
      if (claims[j].host == c.host && claims[j].file_system == c.file_system) {
        wanted += claims[j].wanted;
        if (j % folders.size() == i % folders.size()) ++ranks;
      }
    const Folder& f = folders[i % folders.size()];
    if (wanted > c.available)
      return fmt::format(
          "{}: {} needs {} ({} bytes) for {} of {} of the ranks and their other files there, but {} ({} "
          "bytes) are available; free space there, set nvme_path to a larger disk, or offload less "
          "(offload_optimizer.ratio, offload_param.max_in_cpu)",
          f.key, f.path, format_bytes(wanted), wanted, f.what, ranks, format_bytes(c.available), c.available);
  }
  return "";
}

}  // namespace

std::string check_disks(const Settings& settings, const MemoryTable& planned, Ranks& ranks) {
  int64_t some_weights = 0;  // up to max_in_cpu elements stay in memory, which can be all weights of only
                             // some ranks
  if (settings.shard_home.parameters == MemoryKind::disk) {
    some_weights = planned.at(MemoryKind::disk, Category::weights);
    ranks.all_reduce_on_host(Tensor(&some_weights, DType::int64, {1}, MemoryKind::host), "weights on disks");
  }
  const std::vector<Folder> folders = folders_of(settings, planned, some_weights > 0);
  const bool unused = settings.shard_home.parameters == MemoryKind::disk && some_weights == 0;
  std::string lines =
      unused ? fmt::format(
                   "disk: offload_param.nvme_path is not used: offload_param.max_in_cpu ({} elements a "
                   "rank) lets all parameters stay in host memory",
                   settings.left_in_memory)
             : "";
  if (folders.empty()) return lines;
  const int64_t count = 4 * int64_t(folders.size()), world = ranks.world().size();
  std::vector<Claim> mine(folders.size()), claims(folders.size() * size_t(world));
  ranks.agree([&] {
    for (size_t i = 0; i < folders.size(); ++i) {
      std::error_code refused;  // ignored: disk_space reports the error of a missing folder
      std::filesystem::create_directories(folders[i].path, refused);
      const offload::DiskSpace space = offload::disk_space(folders[i].path, folders[i].key);
      mine[i] = {comm::host_number(), space.file_system, space.available, folders[i].wanted};
    }
  });
  ranks.all_gather_on_host(Tensor(claims.data(), DType::int64, {count * world}, MemoryKind::host),
                           Tensor(mine.data(), DType::int64, {count}, MemoryKind::host), "space on disks");
  const std::string refusal = refusal_of(claims, folders);
  require(refusal.empty(), Exit::memory, "{}", refusal);
  for (size_t i = 0; i < folders.size(); ++i) {
    const Folder& f = folders[i];
    offload::DiskRates rates{};
    // All ranks measure at the same time, as in training.
    ranks.agree([&] { rates = offload::measure_disk(f.path, f.wanted, settings.disk, f.key); });
    int64_t most = 0;
    for (size_t j = i; j < claims.size(); j += folders.size()) most = std::max(most, claims[j].wanted);
    lines += fmt::format(
        "{}disk: {}{} of {} a rank in {} ({}); a rank reads {}/s and writes {}/s, so a step takes at least "
        "{:.2g} s",
        lines.empty() ? "" : "\n", most == f.wanted ? "" : "up to ", format_bytes(most), f.what, f.path,
        rates.engine, format_bytes(int64_t(rates.read)), format_bytes(int64_t(rates.write)),
        double(most) / std::min(rates.read, rates.write));
  }
  return lines;
}

}  // namespace cleave::runtime
