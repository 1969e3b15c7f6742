#include "zero/sharded_optimizer.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave {
namespace {

constexpr int64_t kTile = int64_t{1} << 20;  // elements of tile_, at most

UpdateSlice piece_of(const UpdateSlice& slice, Range r) {
  UpdateSlice piece = slice;
  piece.param = slice.param.slice(r), piece.grad = slice.grad.slice(r);
  if (slice.copy.defined()) piece.copy = slice.copy.slice(r);
  for (Tensor& s : piece.state)
    if (s.defined()) s = s.slice(r);
  return piece;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Memory& memory, ParameterStore& store,
                                   std::unique_ptr<Optimizer> optimizer, const Placement& placement)
    : store_(store), optimizer_(std::move(optimizer)), state_(size_t(store.units())), homes_(memory) {
  for (int u = 0; u < store.units(); ++u) {
    const Tensor weights = store.weights_slice(u);
    const std::string& name = store.layout(u).name();
    State& state = state_[size_t(u)];
    if (weights.dtype() != DType::fp32 || placement.optimizer != weights.memory())
      state.master =
          memory.allocate(placement.optimizer, Category::master, DType::fp32, {weights.numel()}, name);
    for (size_t s = 0; s < optimizer_->states().size(); ++s)
      state.states[s] = memory.allocate(placement.optimizer, Category::optimizer_state, DType::fp32,
                                        {weights.numel()}, name);
  }
  int64_t largest = 0;
  for (int u = 0; u < store.units(); ++u) largest = std::max(largest, store.weights_slice(u).numel());
  const bool exact = store.options().exact();
  if (exact && store.units() > 0)
    tile_ = memory.allocate(store.gradient_slice(0).memory(), Category::staging, DType::fp32,
                            {std::min(largest, kTile)}, "gradients for the update");
  if (memory.device().is_cuda() && placement.optimizer != MemoryKind::device && store.units() > 0)
    host_ = std::make_unique<HostUpdate>(memory, store.weights_slice(0).dtype(),
                                         exact ? DType::fp32 : store.gradient_slice(0).dtype());
}

Tensor ShardedOptimizer::master(int unit) const {
  const State& state = state_[size_t(unit)];
  return state.master.defined() ? state.master.tensor() : store_.weights_slice(unit);
}

void ShardedOptimizer::initialize(uint64_t seed, Stream& compute) {
  for (int u = 0; u < store_.units(); ++u) {
    const FlatLayout& layout = store_.layout(u);
    const Tensor all = master(u);
    for (const FlatLayout::Piece& piece : layout.pieces(store_.slice(u))) {
      const ParamSpec& param = layout.param(piece.param);
      const Tensor part = all.slice({piece.offset, piece.offset + piece.elements.size()});
      const bool random = param.init.kind == Init::Kind::normal || param.init.kind == Init::Kind::uniform;
      if (random)
        launch(RandomFill{.y = part,
                          .philox = {seed, hash_name(param.name)},
                          .first = piece.elements.begin,
                          .scale = param.init.scale,
                          .normal = param.init.kind == Init::Kind::normal},
               home(compute));
      else
        launch(Fill{.y = part, .value = param.init.kind == Init::Kind::ones ? 1.0 : 0.0}, home(compute));
    }
  }
  publish_masters(compute);
}

void ShardedOptimizer::publish_masters(Stream& compute) {
  for (int u = 0; u < store_.units(); ++u) {
    const Buffer& master = state_[size_t(u)].master;
    if (master.defined() && host_)
      host_->publish(store_.next_weights_slice(u), master, compute);
    else if (master.defined())
      launch(Cast{.y = store_.next_weights_slice(u), .x = master}, compute);
    store_.publish(u);
  }
  if (host_) compute.wait(host_->stream().record());
  store_.wait_for_weights();
}

void ShardedOptimizer::square_gradients(Tensor sums, Stream& compute) {
  const bool exact = store_.options().exact();
  for (int u = 0; u < store_.units(); ++u) {
    const Tensor x = store_.gradient_slice(u).slice(store_.norm_range(u));
    homes_.run(x.memory(), compute, [&](Stream& stream) {
      if (exact)
        launch(SumIntegerSquares{.out = sums.slice({4 * u, 4 * u + 4}), .x = x}, stream);
      else
        launch(SumSquares{.out = sums.slice({u, u + 1}), .x = x}, stream);
    });
  }
  if (exact) copy(sums.slice({sums.numel() - 1, sums.numel()}), store_.overflows(), compute);
}

// The same bits however a slice is cut: updates are elementwise.
void ShardedOptimizer::update(const UpdateSlice& slice, const StepArgs& args, Stream& compute) {
  if (!tile_.defined() || slice.grad.dtype() != DType::int64) {
    if (host_)
      host_->update(*optimizer_, slice, args, compute);
    else
      optimizer_->update(slice, args, compute);
    return;
  }
  const int64_t most = tile_.tensor().numel();
  const float scale = float(std::ldexp(1.0, -store_.options().grid));
  for (Range r{0, 0}; r.begin < slice.grad.numel(); r.begin = r.end) {
    r.end = std::min(slice.grad.numel(), r.begin + most);
    UpdateSlice piece = piece_of(slice, r);
    const Tensor gradient = tile_.tensor().slice({0, r.size()});
    homes_.run(gradient.memory(), compute, [&](Stream& stream) {
      launch(FromGrid{.y = gradient, .x = piece.grad, .scale = scale}, stream);
    });
    piece.grad = gradient;
    update(piece, args, compute);
  }
}

void ShardedOptimizer::step(const StepArgs& args, Stream& compute) {
  for (int u = 0; u < store_.units(); ++u) {
    const State& state = state_[size_t(u)];
    for (const FlatLayout::Group& group : store_.layout(u).groups(store_.slice(u))) {
      UpdateSlice slice{.param = master(u).slice(group.range),
                        .grad = store_.gradient_slice(u).slice(group.range),
                        .copy = {},
                        .state = {},
                        .decay = group.decay};
      if (state.master.defined()) slice.copy = store_.next_weights_slice(u).slice(group.range);
      for (size_t s = 0; s < optimizer_->states().size(); ++s)
        slice.state[s] = state.states[s].tensor().slice(group.range);
      update(slice, args, compute);
    }
    store_.publish(u);
  }
  store_.wait_for_weights();
}

std::vector<std::string> ShardedOptimizer::kinds() const {
  std::vector<std::string> kinds{"master"};
  for (const std::string& s : optimizer_->states()) kinds.push_back(s);
  return kinds;
}

Tensor ShardedOptimizer::record(int unit, int kind) const {
  return kind == 0 ? master(unit) : state_[size_t(unit)].states[size_t(kind - 1)].tensor();
}

}  // namespace cleave
