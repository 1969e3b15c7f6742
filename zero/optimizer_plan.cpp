// Set-up of a ShardedOptimizer: where its kernels run, the memory that they need, and what they move.
#include <algorithm>

#include "zero/sharded_optimizer.h"

namespace cleave {
namespace {

std::vector<int> frozen_units(const ParameterStore& store) {
  std::vector<int> units;
  for (int u = 0; u < store.units(); ++u)
    if (store.layout(u).frozen()) units.push_back(u);
  return units;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Memory& memory, ParameterStore& store,
                                   std::unique_ptr<Optimizer> optimizer, const Placement& placement,
                                   Communicator& tensor)
    : store_(store),
      optimizer_(std::move(optimizer)),
      state_(memory, placement, slices_of(store), 1 + int(optimizer_->states().size())),
      frozen_(frozen_units(store)),
      frozen_weights_(memory, store, frozen_),
      homes_(memory) {
  if (store.units() > 0) add_sides(memory, placement);
  done_.resize(size_t(store.units()));
  if (!optimizer_->prepares()) return;
  std::optional<MemoryKind> second;
  if (away_) second = away_ == &host_ ? MemoryKind::pinned : MemoryKind::device;
  whole_ = std::make_unique<WholeParameters>(memory, store, tensor, second);
}

// State on the device is updated there, on compute or, where kernels do not reach its working copy, with
// that on its way. Other state is, too, where a placement says so; or on the host, which on a CPU rank is
// compute again.
void ShardedOptimizer::add_sides(Memory& memory, const Placement& placement) {
  const bool off_device = placement.optimizer != MemoryKind::device, cuda = memory.device().is_cuda();
  const bool streams = off_device && placement.update == UpdateSide::device;
  const bool here = !off_device || placement.ratio < 1 || (!cuda && !streams);
  int64_t largest = 0;
  bool weights_on_device = false, weights_at_home = false;
  for (int u = 0; u < store_.units(); ++u) {
    if (store_.layout(u).frozen()) continue;
    const Tensor weights = store_.weights_slice(u);
    largest = std::max(largest, weights.numel());
    (weights.memory() == MemoryKind::device ? weights_on_device : weights_at_home) = true;
  }
  const MemoryKind gradients = store_.gradient_slice(0).memory();
  auto add = [&](Side& side, UpdateSide where, int kinds, bool moves_gradients, bool moves_weights) {
    StagedUpdate::Travels travels{.kinds = kinds};
    if (moves_gradients) travels.gradients = store_.options().gradients;
    if (moves_weights) travels.weights = store_.options().weights;
    side.staged = std::make_unique<StagedUpdate>(memory, where, travels, largest);
  };
  const bool on_device = gradients == MemoryKind::device;
  if (off_device && cuda && !streams) add(host_, UpdateSide::host, 0, on_device, weights_on_device);
  if (streams || (cuda && here && weights_at_home))
    add(device_, UpdateSide::device, streams ? state_.kinds() : 0, !on_device, weights_at_home);
  if (streams || host_.staged) away_ = streams ? &device_ : &host_;
  auto add_gradient = [&](Side& side, MemoryKind kind) {
    side.gradient = memory.allocate(kind, Category::staging, DType::fp32,
                                    {std::min(largest, StagedUpdate::kPiece)}, "gradients for the update");
  };
  if (!store_.options().exact()) return;
  if (here) add_gradient(here_, gradients);
  if (host_.staged) add_gradient(host_, MemoryKind::pinned);
  if (device_.staged) add_gradient(device_, MemoryKind::device);
}

ShardedOptimizer::Side& ShardedOptimizer::side_of(const UpdateSlice& slice) {
  if (away_ && slice.param.memory() != MemoryKind::device) return *away_;
  return slice.copy.defined() && !homes_.reaches(slice.copy.memory()) ? device_ : here_;
}

std::vector<StateHome::Slice> ShardedOptimizer::slices_of(const ParameterStore& store) {
  std::vector<StateHome::Slice> slices;
  for (int u = 0; u < store.units(); ++u)
    slices.push_back({store.weights_slice(u), store.layout(u).name(), store.layout(u).frozen()});
  return slices;
}

std::vector<std::string> ShardedOptimizer::kinds() const {
  std::vector<std::string> kinds{"master"};
  for (const std::string& s : optimizer_->states()) kinds.push_back(s);
  return kinds;
}

UpdateBytes ShardedOptimizer::update_bytes() const {
  UpdateBytes bytes;
  for (const StateHome::Tile& tile : state_.tiles()) {
    if (tile.home == MemoryKind::device) continue;
    const int64_t n = tile.range.size(), state = n * state_.kinds() * size_of(DType::fp32);
    bytes.state += state, bytes.read += (whole_ ? 2 : 1) * state, bytes.written += state;
    const Tensor gradient = store_.gradient_slice(tile.unit), weights = store_.weights_slice(tile.unit);
    auto on_device = [](const Tensor& t) { return t.memory() == MemoryKind::device; };
    (on_device(gradient) ? bytes.gradients_here : bytes.gradients_at_home) += n * size_of(gradient.dtype());
    if (state_.separate(tile))
      (on_device(weights) ? bytes.weights_here : bytes.weights_at_home) += n * size_of(weights.dtype());
  }
  return bytes;
}

}  // namespace cleave
