#include "runtime/disk_place.h"

#include "comm/seat.h"
#include "core/units.h"
#include "runtime/engine_state.h"

namespace cleave {
namespace {

constexpr const char* kKey = "zero_optimization.offload_optimizer.nvme_path";
constexpr const char* kParamKey = "zero_optimization.offload_param.nvme_path";

MemoryKind host_memory(bool pinned) { return pinned ? MemoryKind::pinned : MemoryKind::host; }

DiskOptions disk_options(const DsConfig& c) {
  return {.block_bytes = c.aio.block_size,
          .queue_depth = int(c.aio.queue_depth),
          .threads = int(c.aio.intra_op_parallelism)};
}

// What a rank wants of the file system that one of its folders is on.
struct Claim {
  int64_t host = 0, file_system = 0, available = 0, wanted = 0;
};

// A folder that a configuration keeps state in, and what for.
struct Folder {
  std::string path, what;
  const char* key;
  int64_t wanted;  // bytes of this rank
};

// some_weights: whether any rank keeps weights on disk. The answer is every rank's, because all check the
// folders together.
std::vector<Folder> folders_of(const DsConfig& c, const MemoryTable& planned, bool some_weights) {
  const int64_t weights = planned.at(MemoryKind::disk, Category::weights);
  const int64_t state = planned.total(MemoryKind::disk) - weights;
  std::vector<Folder> folders;
  const std::string optimizer = c.zero.offload_optimizer.nvme_path, param = c.zero.offload_param.nvme_path;
  const bool has_state = c.zero.offload_optimizer.device == OffloadDevice::nvme,
             has_weights = some_weights && shard_home(c).parameters == MemoryKind::disk;
  const bool together = has_state && has_weights && optimizer == param;
  if (has_state)
    folders.push_back({optimizer, together ? "training state" : "the optimizer state", kKey,
                       together ? state + weights : state});
  if (has_weights && !together) folders.push_back({param, "the parameters", kParamKey, weights});
  return folders;
}

// Why the claims of all ranks, one a folder each, do not fit; empty: they do.
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
          "{}: {} needs {} ({} bytes) for {} of {} of the ranks and what else they keep there, {} ({} bytes) "
          "are "
          "available; free space there, point nvme_path to a larger disk, or keep less on it "
          "(offload_optimizer.ratio, offload_param.max_in_cpu)",
          f.key, f.path, format_bytes(wanted), wanted, f.what, ranks, format_bytes(c.available), c.available);
  }
  return "";
}

}  // namespace

Placement placement(const DsConfig& c, int rank) {
  const OffloadConfig& o = c.zero.offload_optimizer;
  if (o.device == OffloadDevice::none) return {};
  const MemoryKind memory = host_memory(o.pin_memory);
  const UpdateSide update = c.offload_update == OffloadUpdate::device ? UpdateSide::device : UpdateSide::host;
  if (o.device == OffloadDevice::cpu)
    return {.optimizer = memory, .ratio = o.ratio, .update = update, .disk = {}};
  DiskPlace disk{.folder = o.nvme_path,
                 .name = fmt::format("the optimizer state of rank {}", rank),
                 .key = kKey,
                 .staging = memory,
                 .buffers = int(o.buffer_count),
                 .tile_numel = DiskPlace{}.tile_numel,
                 .options = disk_options(c)};
  disk.tile_numel = std::min(disk.tile_numel, c.zero.sub_group_size);
  return {.optimizer = MemoryKind::disk, .ratio = o.ratio, .update = update, .disk = disk};
}

ShardHome shard_home(const DsConfig& c) {
  const OffloadConfig& optimizer = c.zero.offload_optimizer;
  const OffloadParamConfig& param = c.zero.offload_param;
  ShardHome home;
  if (c.zero.stage == 3 && param.device != OffloadDevice::none)
    home.parameters = param.device == OffloadDevice::nvme ? MemoryKind::disk : host_memory(param.pin_memory);
  if (c.zero.stage >= 2 && optimizer.device != OffloadDevice::none && optimizer.ratio == 1)
    home.gradients = host_memory(optimizer.pin_memory);
  return home;
}

DiskPlace parameter_place(const DsConfig& c, int rank) {
  const OffloadParamConfig& o = c.zero.offload_param;
  return {.folder = o.nvme_path,
          .name = fmt::format("the parameters of rank {}", rank),
          .key = kParamKey,
          .staging = host_memory(o.pin_memory),
          .buffers = int(o.buffer_count),
          .tile_numel = DiskPlace{}.tile_numel,
          .options = disk_options(c)};
}

KeptInMemory::KeptInMemory(const OffloadParamConfig& c)
    : left_(c.max_in_cpu), kind_(host_memory(c.pin_memory)) {}

ShardHome KeptInMemory::home_of(const UnitSpec& unit, const ZeroPlan& plan) {
  if (plan.home.parameters != MemoryKind::disk) return plan.home;
  const int64_t shard = FlatLayout(unit, plan.optimizer_shards()).numel() / plan.parameter_shards();
  if (shard > left_) return plan.home;
  left_ -= shard;
  return {kind_, plan.home.gradients};
}

void Engine::State::check_disk() {
  if (options.dry) return;
  int64_t some_weights = 0;  // up to max_in_cpu elements stay in memory: all of one rank's, not of another's
  if (shard_home(config).parameters == MemoryKind::disk) {
    some_weights = planned.at(MemoryKind::disk, Category::weights);
    world.all_reduce(Tensor(&some_weights, DType::int64, {1}, MemoryKind::host), early(),
                     {.what = "weights on disks"});
    early().synchronize();
  }
  const std::vector<Folder> folders = folders_of(config, planned, some_weights > 0);
  if (folders.empty()) return;
  auto of_rank = [](int rank) { return fmt::format("found by rank {}: ", rank); };
  const auto count = int64_t(folders.size());
  std::vector<Claim> mine(folders.size()), claims(folders.size() * size_t(world.size()));
  agree(
      world,
      [&] {
        for (size_t i = 0; i < folders.size(); ++i) {
          const DiskSpace space = disk_space(folders[i].path, folders[i].key);
          mine[i] = {host_number(), space.file_system, space.available, folders[i].wanted};
        }
      },
      of_rank);
  world.all_gather(Tensor(claims.data(), DType::int64, {4 * count * world.size()}, MemoryKind::host),
                   Tensor(mine.data(), DType::int64, {4 * count}, MemoryKind::host), early(),
                   {.what = "space on disks"});
  early().synchronize();
  const std::string refusal = refusal_of(claims, folders);
  require(refusal.empty(), Exit::memory, "{}", refusal);
  for (size_t i = 0; i < folders.size(); ++i) {
    const Folder& f = folders[i];
    DiskRates rates{};
    // All ranks at once, as in training.
    agree(
        world, [&] { rates = measure_disk(f.path, f.wanted, disk_options(config), f.key); }, of_rank);
    int64_t most = 0;
    for (size_t j = i; j < claims.size(); j += folders.size()) most = std::max(most, claims[j].wanted);
    notes.disk += fmt::format(
        "{}disk: {}{} of {} a rank in {} ({}); a rank reads {}/s and writes {}/s, so a step takes at least "
        "{:.2g} s",
        notes.disk.empty() ? "" : "\n", most == f.wanted ? "" : "up to ", format_bytes(most), f.what, f.path,
        rates.engine, format_bytes(int64_t(rates.read)), format_bytes(int64_t(rates.write)),
        double(most) / std::min(rates.read, rates.write));
  }
}

}  // namespace cleave
