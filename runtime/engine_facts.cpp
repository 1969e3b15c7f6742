// What an engine says of itself.
#include "runtime/engine_state.h"

namespace cleave::runtime {

std::vector<std::string> EngineNotes::lines() const {
  std::vector<std::string> out{pipeline, disk, update, graphs};
  std::erase_if(out, [](const std::string& text) { return text.empty(); });
  return out;
}

const EngineNotes& Engine::notes() const { return state_->notes; }
zero::UpdateBytes Engine::update_bytes() const { return state_->needs.update; }
bool Engine::state_is_whole() const { return state_->whole; }
bool Engine::optimizer_is_new() const { return state_->at.applied == state_->at.optimizer_begin; }
int64_t Engine::step() const { return state_->at.step; }
const model::Model& Engine::model() const { return state_->model; }
const config::DsConfig& Engine::config() const { return state_->settings.config; }
Device Engine::device() const { return state_->settings.device; }
int64_t Engine::params() const { return state_->model.params(); }
int64_t Engine::samples_per_micro() const { return state_->settings.config.train_micro_batch_size_per_gpu; }
MemoryTable Engine::memory_planned() const { return state_->needs.memory; }
MemoryTable Engine::memory_live() const { return state_->memory.live(); }
MemoryTable Engine::memory_peak() const { return state_->memory.peak(); }
const MeshShape& Engine::mesh() const { return state_->settings.mesh; }
MeshPlace Engine::place() const { return state_->settings.place; }
double Engine::idle_share() const { return state_->pipeline.idle_share; }
pipeline::Simulation Engine::timeline() const {
  return pipeline::simulate(
      state_->pipeline.schedule,
      {.work = state_->pipeline.work, .splits = state_->pipeline.splits, .record = true});
}
const std::vector<pipeline::LayerCost>& Engine::layer_costs() const { return state_->pipeline.layers; }
int64_t Engine::frame_bytes() const { return state_->rank->stage.frame_bytes(); }

std::string Engine::describe_units() const {
  const zero::ParameterStore& store = state_->rank->store;
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

comm::CommBytes Engine::comm_bytes() const {
  comm::CommBytes sum;
  for (const Ranks::Group& g : state_->ranks.groups())
    for (int i = 0; i < comm::kCollectives; ++i)
      sum[comm::Collective(i)] += g.ranks->bytes()[comm::Collective(i)];
  return sum;
}

std::vector<std::pair<RankGroup, comm::CommBytes>> Engine::comm_bytes_by_group() const {
  std::vector<std::pair<RankGroup, comm::CommBytes>> out;
  for (const Ranks::Group& g : state_->ranks.groups()) out.emplace_back(g.what, g.ranks->bytes());
  return out;
}

}  // namespace cleave::runtime
