// Construction of an engine: from a configuration to the components of a rank, planned before allocation.
#include "runtime/step/engine_core.h"

#include <nlohmann/json.hpp>

#include "core/warnings.h"
#include "device/gpu_problems.h"
#include "runtime/step/disk_check.h"
#include "runtime/step/products_check.h"
#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

// Uses the allocator of the GPU transport, if it has one and the configuration requests its memory.
MovedMemory moved_memory(const Settings& s, comm::Communicator& world) {
  comm::TransportAccess* own = world.transport();
  return {s.moved_granularity, own && s.moved_granularity > 1 ? own->allocator() : nullptr};
}

}  // namespace

EngineCore::EngineCore(const config::DsConfig& c, comm::Communicator& world, const EngineOptions& o)
    : options(o),
      config(o.inference ? inference_config(c) : c),
      settings(make_settings(c, mesh_shape(c, world.size()), world.rank(), o)),
      streams(std::make_unique<Streams>(settings, o.compute, o.dry)),
      ranks(world, settings, streams->rows),
      memory(o.limits, o.dry ? Memory::Mode::dry : Memory::Mode::real, o.device,
             moved_memory(settings, world)),
      scaler(options.scales_loss ? optim::LossScaler::of_fp32()
             : settings.scales_loss
                 ? optim::LossScaler(c.fp16, c.zero.stage == 0 && c.deepspeed_stage0_loss_scale)
                 : optim::LossScaler()) {
  notes.graphs = settings.graphs_note;
  if (c.copies_in_memory && settings.trains && !settings.keeps_copies && world.rank() == 0)
    warn(
        "cleave.copies_in_memory: no effect, because this program gives the engine no memory for copies "
        "(EngineOptions::copies)");
}

void EngineCore::set_units(RankUnits those) {
  units = std::move(those);
  ranks.tie(units);
}

void EngineCore::start() {
  check_memory();
  if (!options.dry) check_products(settings, ranks);
  choose_update();
  if (!options.dry) notes.disk = check_disks(settings, needs.memory, ranks);
  allocate();
}

RankNeeds EngineCore::dry_run() const {
  Memory counted({}, Memory::Mode::dry, settings.device, {settings.moved_granularity});
  Streams dry(settings, Stream::Mode::dry, true);
  RankState state(settings, units, ranks, dry, counted);
  const std::unique_ptr<Computation> with = computation(state, dry, counted);
  const Buffer copy = copy_of_state(state, *with, dry, counted);
  const std::unique_ptr<StateCopier> copies = copier_of(state, *with, counted);
  return {counted.peak(), state.trained ? state.trained->update_bytes() : zero::UpdateBytes{}};
}

Buffer EngineCore::copy_of_state(RankState& of, Computation& with, Streams& on, Memory& in) const {
  if (!of.trained || !settings.saves_behind) return {};
  const int64_t bytes = checkpoint::BackgroundSave::bytes_of(records_to_save(of, with, on.compute));
  return in.allocate(settings.device.is_cuda() ? MemoryKind::pinned : MemoryKind::host, Category::checkpoint,
                     DType::uint8, {bytes}, "the copy of the state that is being saved");
}

std::unique_ptr<StateCopier> EngineCore::copier_of(RankState& of, Computation& with, Memory& in) const {
  if (!of.trained || !settings.keeps_copies) return nullptr;
  return std::make_unique<StateCopier>(settings, of, with, in, options.copies);
}

void EngineCore::check_memory() {
  needs = dry_run();
  ranks.agree(
      *ranks.mesh().pipe, [&] { check_fits(needs.memory, options.limits); },
      [&](int stage) {
        return settings.mesh.pipe > 1 ? fmt::format("stage {} of the pipeline: ", stage) : "";
      });
  if (!settings.device.is_cuda() || options.dry) return;
  ranks.agree([&] {  // before any rank allocates, because ranks may share a GPU
    const std::string problem = memory_problem(cuda_gpu(settings.device), settings.device,
                                               needs.memory.total(MemoryKind::device), ranks.reserve());
    require(problem.empty(), Exit::memory, "{}", problem);
  });
}

void EngineCore::choose_update() {
  if (!settings.measures_update) return;
  const offload::Placement& home = settings.state_home;
  zero::UpdateRates rates;
  ranks.agree([&] {
    rates = zero::measure_update(*make_optimizer(settings), settings.device,
                                 home.optimizer == MemoryKind::disk ? home.disk.staging : home.optimizer);
  });
  const zero::UpdateTimes times = zero::update_times(needs.update, rates);
  settings.state_home.update =
      times.device < times.host ? offload::UpdateSide::device : offload::UpdateSide::host;
  notes.update = zero::describe_update(needs.update, rates);
  check_memory();  // the other side may need a different amount
}

void EngineCore::allocate() {
  memory.expect(needs.memory);
  rank = std::make_unique<RankState>(settings, units, ranks, *streams, memory);
  computes = computation(*rank, *streams, memory);
  state_copy = copy_of_state(*rank, *computes, *streams, memory);
  copier = copier_of(*rank, *computes, memory);
  if (settings.device.is_cuda() && !settings.dry) {
    ranks.open(rank->store.groups(), rank->store.gathers_in_pieces());
    loan = BufferLoan(ranks.data_groups(), memory.moved());
    // Allocation may wait for all work of a GPU, including that of another rank that waits for this one.
    ranks.agree([] {});
  }
  if (!options.weights_follow) rank->saved->initialize(options.seed, streams->compute);
  streams->synchronize();
  if (!options.dry && !options.inference) pulse = Pulse::of(ranks, config, settings.device);
  if (state_copy.defined() && !settings.dry)
    background = std::make_unique<checkpoint::BackgroundSave>(state_copy, ranks.world());
  if (!options.trace) return;
  streams->name_in(*options.trace);
  rank->show_in(*options.trace, streams->compute), computes->show_in(*options.trace);
}

TrainingState EngineCore::own_position() const {
  TrainingState out = at;
  out.missed.clear();
  if (!rank->trained) return out;
  for (int u = 0; u < rank->store.units(); ++u)
    for (int p = 0; p < rank->store.layout(u).params(); ++p)
      if (const int64_t missed = rank->optimizer().updates(u, p).missed)
        out.missed[rank->store.layout(u).param(p).name] = missed;
  return out;
}

TrainingState EngineCore::position() {
  TrainingState out = own_position();
  if (!rank->trained) return out;
  const nlohmann::json mine = out.missed;
  for (const std::string& text : ranks.texts(*ranks.mesh().pipe, mine.dump())) {
    const nlohmann::json stage = nlohmann::json::parse(text);
    for (const auto& [name, missed] : stage.items()) out.missed[name] = missed;
  }
  return out;
}

void EngineCore::set_position(const TrainingState& to, std::span<const std::string> fresh) {
  at = to;
  next_lr.reset();
  if (!rank->trained) return;
  for (const std::string& name : fresh) at.missed[name] = at.applied - at.optimizer_begin;
  for (int u = 0; u < rank->store.units(); ++u)
    for (int p = 0; p < rank->store.layout(u).params(); ++p) {
      const auto missed = at.missed.find(rank->store.layout(u).param(p).name);
      rank->optimizer().updates(u, p).missed = missed == at.missed.end() ? 0 : missed->second;
    }
}

}  // namespace cleave::runtime
