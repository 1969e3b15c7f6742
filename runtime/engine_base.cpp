#include "runtime/engine_base.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "comm/together.h"
#include "config_schema/summary.h"
#include "device/copy.h"
#include "kernels/elementwise.h"
#include "runtime/saved_training.h"
#include "runtime/step/engine_core.h"
#include "runtime/step/save_weights.h"
#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

// Rejects a checkpoint with a missing kind of state before anything is overwritten.
void require_kinds(const SavedTraining& saved, const std::vector<std::string>& wanted) {
  const std::vector<std::string> stored = saved.kinds();
  const bool all = std::all_of(wanted.begin(), wanted.end(), [&](auto& kind) {
    return std::count(stored.begin(), stored.end(), kind) > 0;
  });
  require(all, Exit::checkpoint,
          "{} contains {}, but this run's optimizer needs {}: another optimizer trained it. Use that "
          "optimizer, or discard its state: --reset_optimizer",
          saved.path().string(), fmt::join(stored, ", "), fmt::join(wanted, ", "));
}

template <class T>
Tensor tensor_of(std::span<T> values) {
  return Tensor(values.data(), dtype_of<T>(), {int64_t(values.size())}, MemoryKind::host);
}
template <class T>
Tensor tensor_of(std::vector<T>& values) {
  return tensor_of(std::span<T>(values));
}

// Different tags on the ranks would split a checkpoint over two folders.
void require_one_tag(EngineCore& s, const std::string& dir, const std::string& tag) {
  const auto own = double(uint32_t(std::hash<std::string>{}(tag)));
  double sum = 0;
  try {
    sum = s.ranks.sum(own, "the tag of a checkpoint");
  } catch (const Error& e) {
    throw Error(e.exit(), checkpoint::while_saving(std::filesystem::path(dir) / tag, e));
  }
  require(sum == own * s.settings.mesh.size(), Exit::usage,
          "save_checkpoint: tag differs between ranks (this rank: {}); use one tag", tag);
}

}  // namespace

std::vector<std::string> EngineNotes::lines() const {
  std::vector<std::string> out{pipeline, disk, update, graphs};
  std::erase_if(out, [](const std::string& text) { return text.empty(); });
  return out;
}

EngineBase::EngineBase(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
EngineBase::~EngineBase() = default;

void EngineBase::synchronize() { core().streams->synchronize(); }
const EngineNotes& EngineBase::notes() const { return core().notes; }
zero::UpdateBytes EngineBase::update_bytes() const { return core().needs.update; }
bool EngineBase::state_is_whole() const { return core().whole; }
bool EngineBase::optimizer_is_new() const { return core().at.applied == core().at.optimizer_begin; }
int64_t EngineBase::step() const { return core().at.step; }
int64_t EngineBase::skipped() const { return core().at.skipped; }
optim::Rates EngineBase::next_rates() const { return core().next_rates(); }
void EngineBase::name_samples(std::function<std::string(const std::optional<MicroPlace>&)> samples) {
  core().samples = std::move(samples);
}
void EngineBase::set_next_lr(double lr) { core().next_lr = lr; }
double EngineBase::loss_scale() const { return core().scaler.scale(); }
const config::DsConfig& EngineBase::config() const { return core().config; }
Device EngineBase::device() const { return core().settings.device; }
Stream& EngineBase::stream() { return core().streams->compute; }
MemoryTable EngineBase::memory_planned() const { return core().needs.memory; }
MemoryTable EngineBase::memory_live() const { return core().memory.live(); }
MemoryTable EngineBase::memory_peak() const { return core().memory.peak(); }
const MeshShape& EngineBase::mesh() const { return core().settings.mesh; }
MeshPlace EngineBase::place() const { return core().settings.place; }

int64_t EngineBase::params() const {
  int64_t sum = 0;
  for (const ParamSpec& p : parameters()) sum += p.whole_numel();
  return sum;
}

std::vector<ParamSpec> EngineBase::parameters() const {
  std::vector<ParamSpec> all;
  for (const UnitSpec& u : core().units.all)
    if (u.word == 0) all.insert(all.end(), u.params.begin(), u.params.end());
  return all;
}

std::vector<std::string> EngineBase::trained() const {
  std::vector<std::string> names;
  for (const UnitSpec& u : core().units.all)
    for (const ParamSpec& p : u.params)
      if (!u.frozen) names.push_back(p.name);
  return names;
}

std::string EngineBase::describe_units() const {
  const zero::ParameterStore& store = core().rank->store;
  std::string text = fmt::format("{:<24} {:>6} {:>12} {:>12}  {:<12} {}\n", "unit of this rank", "params",
                                 "elements", "of this rank", "weights in", "gradients in");
  for (int u = 0; u < store.units(); ++u) {
    const zero::FlatLayout& layout = store.layout(u);
    const Tensor gradients = store.gradient_slice(u);
    text += fmt::format("{:<24} {:>6} {:>12} {:>12}  {:<12} {}\n", layout.name(), layout.params(),
                        layout.numel(), store.slice(u).size(), name_of(store.weights_slice(u).memory()),
                        gradients.defined() ? name_of(gradients.memory()) : "none");
  }
  return text;
}

comm::CommBytes EngineBase::comm_bytes() const {
  comm::CommBytes sum;
  for (const Ranks::Group& g : core().ranks.groups())
    for (int i = 0; i < comm::kCollectives; ++i)
      sum[comm::Collective(i)] += g.ranks->bytes()[comm::Collective(i)];
  return sum;
}

std::vector<std::pair<RankGroup, comm::CommBytes>> EngineBase::comm_bytes_by_group() const {
  std::vector<std::pair<RankGroup, comm::CommBytes>> out;
  for (const Ranks::Group& g : core().ranks.groups()) out.emplace_back(g.what, g.ranks->bytes());
  return out;
}

// ---- checkpoints and weights ----

void EngineBase::save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client,
                                 const Written& written) {
  EngineCore& s = core();
  s.rank->optimizer();
  require_one_tag(s, dir, tag);
  const std::vector<checkpoint::Record> records = records_to_save(*s.rank, *s.computes, s.streams->compute);
  const std::string state =
      to_json(s.position(), s.scaler.state(), s.options.seed, client, config::training_values(s.config));
  if (s.background) return s.background->begin(dir, tag, records, state, written);
  const checkpoint::SavedCheckpoint saved =
      cleave::checkpoint::save_checkpoint(dir, tag, records, state, s.ranks.world());
  if (written) written(saved);
}

void EngineBase::finish_save() {
  if (core().background) core().background->finish();
}

bool EngineBase::save_failed() const { return core().background && core().background->failed(); }

std::string EngineBase::load_checkpoint(const std::string& dir, const std::string& tag, Load what) {
  return load_checkpoint([&] { return SavedTraining(dir, tag); }, what);
}

std::string EngineBase::load_checkpoint(const std::function<SavedTraining()>& open, Load what) {
  EngineCore& s = core();
  bool reset = !what.optimizer;
  std::vector<std::string> kinds = s.rank->saved->kinds();
  Restored restored;
  comm::together(s.ranks.world(), Exit::checkpoint, [&] {
    const SavedTraining saved = open();
    restored = saved.state();
    reset = reset || (restored.imported && saved.kinds() == std::vector<std::string>{"master"});
    const std::vector<std::string> states(kinds.begin() + 1, kinds.end());
    if (reset) kinds.resize(1);  // the weights
    require_kinds(saved, kinds);
    // Files of another program may lack the layers' state, and parameters that are not numbers.
    const auto lacking = [&](const checkpoint::Record& r) {
      return (restored.imported || r.may_be_missing) && !saved.has(r.kind, r.tensor);
    };
    std::vector<checkpoint::Record> records = records_to_load(*s.rank, s.streams->compute);
    std::erase_if(records, [&](const checkpoint::Record& r) {
      return r.dtype == DType::fp32 ? reset && std::count(states.begin(), states.end(), r.kind) > 0
                                    : lacking(r);
    });
    for (checkpoint::Record& r : s.computes->records(Computation::Whose::held))
      if (!lacking(r)) records.push_back(std::move(r));
    saved.read(records);
  });
  s.changed = config::differing_values(restored.settings, config::training_values(s.config));
  if (what.steps) {
    const TrainingState before = s.position();
    TrainingState to = std::move(restored.at);
    if (reset) {
      to.optimizer_begin = to.applied - (before.applied - before.optimizer_begin);
      to.missed = before.missed;
    }
    if (!what.schedule) to.schedule_begin = to.applied - (before.applied - before.schedule_begin);
    s.set_position(to);
    if (!restored.imported) s.options.seed = restored.seed;
    if (s.settings.scales_loss && restored.scaler) s.scaler.restore(*restored.scaler);
  }
  s.rank->saved->publish_masters(s.streams->compute);
  s.streams->synchronize();
  return restored.client;
}

void EngineBase::describe_copies(std::string client) { core().client_of_copies = std::move(client); }

std::string EngineBase::load_copies() {
  EngineCore& s = core();
  CHECK(s.copier, "this engine has no copies of the state in memory");
  constexpr int64_t kSteps = StateCopies::kCopies;
  std::array<int64_t, kSteps> mine = s.options.copies->steps();
  std::vector<int64_t> all(size_t(kSteps * s.ranks.world().size()));
  s.ranks.all_gather_on_host(tensor_of(all), tensor_of(std::span<int64_t>(mine)), "steps of the copies");
  const int64_t step = newest_common_step(all);
  require(step >= 0, Exit::rank_lost,
          "cleave.copies_in_memory: the copies of the ranks have no step in common; run again to resume from "
          "the newest checkpoint");
  const Restored restored = from_json(s.copier->restore(step), "the copy of the state in memory");
  s.set_position(restored.at);
  s.options.seed = restored.seed;
  if (s.settings.scales_loss && restored.scaler) s.scaler.restore(*restored.scaler);
  s.rank->saved->publish_masters(s.streams->compute);
  s.streams->synchronize();
  return restored.client;
}

const std::vector<std::string>& EngineBase::changed_settings() const { return core().changed; }

void EngineBase::load_weights(const std::function<void(const checkpoint::Record&)>& read) {
  EngineCore& s = core();
  const std::string kind = s.rank->saved->kinds().front();
  comm::together(s.ranks.world(), Exit::checkpoint, [&] {
    for (const checkpoint::Record& r : records_to_load(*s.rank, s.streams->compute))
      if (r.kind == kind) read(r);
  });
  s.rank->saved->publish_masters(s.streams->compute);
  s.streams->synchronize();
}

void EngineBase::save_16bit_model(const std::string& dir, const checkpoint::WeightNames& names,
                                  int64_t max_file_size) {
  EngineCore& s = core();
  synchronize();
  save_weights(*s.rank, s.ranks.world(), s.streams->compute, s.streams->comm(), dir, names,
               {.dtype = s.settings.dtype, .max_file_size = max_file_size});
}

std::vector<std::string> EngineBase::kinds() const { return core().rank->saved->kinds(); }

int64_t EngineBase::require_state(const std::string& name, int kind, bool bits) const {
  const EngineCore& s = core();
  const auto kinds = int(s.rank->saved->kinds().size());
  CHECK(0 <= kind && kind < kinds, "state {} of {}; a parameter has {} kinds", kind, name, kinds);
  for (const UnitSpec& unit : s.units.all)
    for (const ParamSpec& p : unit.params)
      if (p.name == name) {
        require(kind == 0 || !unit.frozen, Exit::usage, "{} is frozen: it has no optimizer state", name);
        require(bits == (unit.word > 0), Exit::usage, "{}: {} (got a request for {})", name,
                bits ? "has numbers" : "has bits of another type", bits ? "bits" : "numbers");
        return p.whole_numel() / std::max(1, unit.word);
      }
  fail(Exit::usage, "{}: has no parameter {}", s.units.model, name);
}

std::vector<float> EngineBase::parameter(const std::string& name, int kind) {
  std::vector<float> whole(size_t(require_state(name, kind, false)));
  read_whole(name, kind, tensor_of(whole));
  return whole;
}

std::vector<float> EngineBase::own_master(const std::string& name) {
  std::vector<float> whole(size_t(require_state(name, 0, false)), std::numeric_limits<float>::quiet_NaN());
  synchronize();
  read_own_master(*core().rank, name, whole, core().streams->compute);
  return whole;
}

std::vector<int64_t> EngineBase::bits(const std::string& name) {
  std::vector<int64_t> whole(size_t(require_state(name, 0, true)));
  read_whole(name, 0, tensor_of(whole));
  return whole;
}

// Each element is nonzero on only one rank, so the sum is exact.
void EngineBase::read_whole(const std::string& name, int kind, Tensor whole) {
  EngineCore& s = core();
  synchronize();
  read_state(*s.rank, name, kind, whole, s.streams->compute);
  s.ranks.world().all_reduce(whole, s.streams->comm(), {.what = "a whole parameter"});
  s.streams->comm().synchronize();
}

Tensor EngineBase::resident(const std::string& name) {
  const EngineCore& s = core();
  synchronize();
  const zero::WeightShards& weights = s.rank->store.weights();
  for (int u = 0; u < weights.units(); ++u) {
    const std::vector<ParamSpec>& params = s.units.all[size_t(s.units.held[size_t(u)])].params;
    for (size_t p = 0; p < params.size(); ++p) {
      if (params[p].name != name) continue;
      if (weights.unit(u).sharding.gathers() || params[p].shape != params[p].whole_shape()) return {};
      std::vector<Tensor> views;
      weights.add_views(u, weights.shard(u), views);
      return views[p];
    }
  }
  return {};
}

Buffer EngineBase::gathered(const std::vector<std::string>& names) {
  EngineCore& s = core();
  std::vector<float> values;
  for (const std::string& name : names) {
    const std::vector<float> whole = parameter(name);
    values.insert(values.end(), whole.begin(), whole.end());
  }
  const auto numel = int64_t(values.size());
  const auto make = [&](MemoryKind kind) {
    return s.memory.allocate(kind, Category::staging, s.settings.dtype, {numel}, "gathered parameters");
  };
  const Buffer here = make(MemoryKind::host);
  Buffer there = make(MemoryKind::device);
  Stream host;
  kernels::launch(
      kernels::Cast{.y = here, .x = Tensor(values.data(), DType::fp32, {numel}, MemoryKind::host)}, host);
  host.synchronize();
  copy(there, here, s.streams->compute);
  synchronize();
  return there;
}

void EngineBase::write_parameter(const std::string& name, std::span<float> whole, int kind) {
  write_whole(name, kind, tensor_of(whole));
}

void EngineBase::write_bits(const std::string& name, std::span<int64_t> whole) {
  write_whole(name, 0, tensor_of(whole));
}

void EngineBase::write_whole(const std::string& name, int kind, Tensor whole) {
  const int64_t numel = require_state(name, kind, whole.dtype() == DType::int64);
  CHECK(whole.numel() == numel, "{} has {} elements, got {}", name, numel, whole.numel());
  synchronize();
  write_state(*core().rank, name, kind, whole, core().streams->compute);
}

void EngineBase::publish_parameters() {
  core().rank->saved->publish_masters(core().streams->compute);
  synchronize();
}

void EngineBase::set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values) {
  write_parameters(*core().rank, values, core().streams->compute);
  synchronize();
}

}  // namespace cleave::runtime
