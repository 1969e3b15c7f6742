#include "runtime/disk_place.h"

#include <unistd.h>

#include "core/philox.h"
#include "core/units.h"
#include "runtime/engine_state.h"

namespace cleave {
namespace {

constexpr const char* kKey = "zero_optimization.offload_optimizer.nvme_path";

MemoryKind host_memory(bool pinned) { return pinned ? MemoryKind::pinned : MemoryKind::host; }

DiskOptions disk_options(const DsConfig& c) {
  return {.block_bytes = c.aio.block_size,
          .queue_depth = int(c.aio.queue_depth),
          .threads = int(c.aio.intra_op_parallelism)};
}

// What a rank wants of the file system that its folder is on.
struct Claim {
  int64_t host, file_system, available, wanted;
};

int64_t host_number() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return int64_t(hash_name(name));
}

// Why the claims of all ranks do not fit; empty: they do.
std::string refusal_of(const std::vector<Claim>& claims, const std::string& folder) {
  for (const Claim& c : claims) {
    int64_t wanted = 0, ranks = 0;
    for (const Claim& other : claims)
      if (other.host == c.host && other.file_system == c.file_system) wanted += other.wanted, ++ranks;
    if (wanted > c.available)
      return fmt::format(
          "{}: {} needs {} ({} bytes) for the optimizer state of {} of the ranks, {} ({} bytes) are "
          "available; free "
          "space there, point nvme_path to a larger disk, or lower offload_optimizer.ratio",
          kKey, folder, format_bytes(wanted), wanted, ranks, format_bytes(c.available), c.available);
  }
  return "";
}

}  // namespace

Placement placement(const DsConfig& c, int rank) {
  const OffloadConfig& o = c.zero.offload_optimizer;
  if (o.device == "none") return {};
  const MemoryKind memory = host_memory(o.pin_memory);
  if (o.device == "cpu") return {.optimizer = memory, .ratio = o.ratio, .disk = {}};
  DiskPlace disk{.folder = o.nvme_path,
                 .name = fmt::format("the optimizer state of rank {}", rank),
                 .key = kKey,
                 .staging = memory,
                 .buffers = int(o.buffer_count),
                 .tile_numel = DiskPlace{}.tile_numel,
                 .options = disk_options(c)};
  disk.tile_numel = std::min(disk.tile_numel, c.zero.sub_group_size);
  return {.optimizer = MemoryKind::disk, .ratio = o.ratio, .disk = disk};
}

ShardHome shard_home(const DsConfig& c) {
  const OffloadConfig& optimizer = c.zero.offload_optimizer;
  const OffloadParamConfig& param = c.zero.offload_param;
  ShardHome home;
  if (c.zero.stage == 3 && param.device != "none")
    home.parameters = param.device == "nvme" ? MemoryKind::disk : host_memory(param.pin_memory);
  if (c.zero.stage >= 2 && optimizer.device != "none" && optimizer.ratio == 1)
    home.gradients = host_memory(optimizer.pin_memory);
  return home;
}

DiskPlace parameter_place(const DsConfig& c, int rank) {
  const OffloadParamConfig& o = c.zero.offload_param;
  return {.folder = o.nvme_path,
          .name = fmt::format("the parameters of rank {}", rank),
          .key = "zero_optimization.offload_param.nvme_path",
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
  const Placement place = placement(config, world.rank());
  if (place.optimizer != MemoryKind::disk || options.dry) return;
  const std::string folder = place.disk.folder.string();
  const bool together = config.zero.offload_param.nvme_path == config.zero.offload_optimizer.nvme_path;
  const int64_t apart = together ? 0 : planned.at(MemoryKind::disk, Category::weights);
  const int64_t wanted = planned.total(MemoryKind::disk) - apart;
  auto of_rank = [](int rank) { return fmt::format("found by rank {}: ", rank); };
  Claim mine{host_number(), 0, 0, wanted};
  DiskRates rates{};
  agree(
      world,
      [&] {
        const DiskSpace space = disk_space(place.disk.folder, kKey);
        mine.available = space.available, mine.file_system = space.file_system;
      },
      of_rank);
  std::vector<Claim> claims(size_t(world.size()));
  world.all_gather(Tensor(claims.data(), DType::int64, {4 * world.size()}, MemoryKind::host),
                   Tensor(&mine, DType::int64, {4}, MemoryKind::host), comm(), {.what = "space on disks"});
  comm().synchronize();
  const std::string refusal = refusal_of(claims, folder);
  require(refusal.empty(), Exit::memory, "{}", refusal);
  // All ranks at once, as in training.
  agree(
      world, [&] { rates = measure_disk(place.disk.folder, wanted, place.disk.options, kKey); }, of_rank);
  const double bytes = double(wanted);
  disk_line = fmt::format(
      "disk: {} of training state a rank in {} ({}); a rank reads {}/s and writes {}/s, so a step takes at "
      "least "
      "{:.2g} s",
      format_bytes(wanted), folder, rates.engine, format_bytes(int64_t(rates.read)),
      format_bytes(int64_t(rates.write)), std::max(bytes / rates.read, bytes / rates.write));
}

}  // namespace cleave
