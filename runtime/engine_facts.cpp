// Properties of an engine.
#include "runtime/engine_base.h"
#include "runtime/step/engine_core.h"

namespace cleave::runtime {

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
void EngineBase::set_next_lr(double lr) { core().next_lr = lr; }
double EngineBase::loss_scale() const { return core().scaler.scale(); }
const config::DsConfig& EngineBase::config() const { return core().config; }
Device EngineBase::device() const { return core().settings.device; }
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
  for (const UnitSpec& u : core().units.all) all.insert(all.end(), u.params.begin(), u.params.end());
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

}  // namespace cleave::runtime
