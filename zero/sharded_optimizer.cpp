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

// The whole, or what fits into a tile at a time.
std::vector<Range> pieces(int64_t numel, bool in_tiles) {
  std::vector<Range> all;
  for (Range r{0, 0}; r.begin < numel; r.begin = r.end) {
    r.end = in_tiles ? std::min(numel, r.begin + kTile) : numel;
    all.push_back(r);
  }
  return all;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Memory& memory, ParameterStore& store,
                                   std::unique_ptr<Optimizer> optimizer, const Placement& placement)
    : store_(store),
      optimizer_(std::move(optimizer)),
      state_(memory, placement, slices_of(store), 1 + int(optimizer_->states().size())),
      homes_(memory) {
  int64_t largest = 0;
  for (int u = 0; u < store.units(); ++u) largest = std::max(largest, store.weights_slice(u).numel());
  const bool exact = store.options().exact();
  if (exact && store.units() > 0)
    tile_ = memory.allocate(store.gradient_slice(0).memory(), Category::staging, DType::fp32,
                            {std::min(largest, kTile)}, "gradients for the update");
  // State on the device whose working copy is out of reach.
  const bool here = placement.optimizer == MemoryKind::device || placement.ratio < 1;
  bool far = false;
  for (int u = 0; u < store.units(); ++u) far = far || !homes_.reaches(store.weights_slice(u).memory());
  if (here && far)
    working_ = memory.allocate(MemoryKind::device, Category::staging, store.options().weights,
                               {std::min(largest, kTile)}, "updated parameters on their way home");
  if (memory.device().is_cuda() && placement.optimizer != MemoryKind::device && store.units() > 0)
    host_ = std::make_unique<HostUpdate>(memory, store.weights_slice(0).dtype(),
                                         exact ? DType::fp32 : store.gradient_slice(0).dtype());
}

std::vector<StateHome::Slice> ShardedOptimizer::slices_of(const ParameterStore& store) {
  std::vector<StateHome::Slice> slices;
  for (int u = 0; u < store.units(); ++u) slices.push_back({store.weights_slice(u), store.layout(u).name()});
  return slices;
}

void ShardedOptimizer::initialize(uint64_t seed, Stream& compute) {
  state_.walk({}, {0, 1}, home(compute), [&](const StateHome::Tile& tile, const State& state) {
    fill(tile, state[0], seed, on_host(tile.home) ? home(compute) : compute);
    publish(tile, state[0], compute);
  });
  store_.wait_for_weights();
}

void ShardedOptimizer::fill(const StateHome::Tile& tile, Tensor master, uint64_t seed, Stream& stream) {
  const FlatLayout& layout = store_.layout(tile.unit);
  launch(Fill{.y = master, .value = 0}, stream);  // the padding of a unit, and what was in a tile before
  for (const FlatLayout::Piece& piece : layout.pieces(tile.range.shifted(store_.slice(tile.unit).begin))) {
    const ParamSpec& param = layout.param(piece.param);
    const Tensor part = master.slice({piece.offset, piece.offset + piece.elements.size()});
    const bool random = param.init.kind == Init::Kind::normal || param.init.kind == Init::Kind::uniform;
    if (random)
      launch(RandomFill{.y = part,
                        .philox = {seed, hash_name(param.name)},
                        .first = piece.elements.begin,
                        .scale = param.init.scale,
                        .normal = param.init.kind == Init::Kind::normal},
             stream);
    else
      launch(Fill{.y = part, .value = param.init.kind == Init::Kind::ones ? 1.0 : 0.0}, stream);
  }
}

// Lets the body write at most a tile of the working copy where kernels reach it, and brings it to its home.
template <class Body>
void ShardedOptimizer::in_reach(Tensor weights, Stream& compute, Body body) {
  if (homes_.reaches(weights.memory())) return body(weights);
  const Tensor here = working_.tensor().slice({0, weights.numel()});
  body(here);
  copy(weights, here, compute);
}

void ShardedOptimizer::publish(const StateHome::Tile& tile, Tensor master, Stream& compute) {
  if (state_.separate(tile)) {
    const Tensor weights = store_.next_weights_slice(tile.unit).slice(tile.range);
    if (on_host(tile.home))
      host_->publish(weights, master, compute);
    else
      for (const Range& r : pieces(weights.numel(), !homes_.reaches(weights.memory())))
        in_reach(weights.slice(r), compute,
                 [&](Tensor copy) { launch(Cast{.y = copy, .x = master.slice(r)}, compute); });
  } else {
    compute.wait(home(compute).record());
  }
  if (tile.last) store_.publish(tile.unit);
}

void ShardedOptimizer::publish_masters(Stream& compute) {
  state_.walk({0, 1}, {}, home(compute),
              [&](const StateHome::Tile& tile, const State& state) { publish(tile, state[0], compute); });
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
  const bool exact = slice.grad.dtype() == DType::int64, host = on_host(slice.param.memory());
  const bool far = !host && slice.copy.defined() && !homes_.reaches(slice.copy.memory());
  for (const Range& r : pieces(slice.param.numel(), exact || far)) {
    UpdateSlice piece = piece_of(slice, r);
    if (exact) {
      const Tensor gradient = tile_.tensor().slice({0, r.size()});
      homes_.run(gradient.memory(), compute, [&](Stream& stream) {
        launch(
            FromGrid{.y = gradient, .x = piece.grad, .scale = float(std::ldexp(1.0, -store_.options().grid))},
            stream);
      });
      piece.grad = gradient;
    }
    if (host)
      host_->update(*optimizer_, piece, args, compute);
    else if (!piece.copy.defined())
      optimizer_->update(piece, args, compute);
    else
      in_reach(piece.copy, compute, [&](Tensor reached) {
        piece.copy = reached;
        optimizer_->update(piece, args, compute);
      });
  }
}

void ShardedOptimizer::step(const StepArgs& args, Stream& compute) {
  const Range all{0, state_.kinds()};
  state_.walk(all, all, home(compute), [&](const StateHome::Tile& tile, const State& state) {
    const int u = tile.unit;
    for (const FlatLayout::Group& group : store_.layout(u).groups(store_.slice(u))) {
      const Range r = intersect(group.range, tile.range), here = r.shifted(-tile.range.begin);
      if (r.empty()) continue;
      UpdateSlice slice{.param = state[0].slice(here),
                        .grad = store_.gradient_slice(u).slice(r),
                        .copy = {},
                        .state = {},
                        .decay = group.decay};
      if (state_.separate(tile)) slice.copy = store_.next_weights_slice(u).slice(r);
      for (int s = 1; s < state_.kinds(); ++s) slice.state[size_t(s - 1)] = state[size_t(s)].slice(here);
      update(slice, args, compute);
    }
    if (tile.last) store_.publish(u);
  });
  store_.wait_for_weights();
}

std::vector<std::string> ShardedOptimizer::kinds() const {
  std::vector<std::string> kinds{"master"};
  for (const std::string& s : optimizer_->states()) kinds.push_back(s);
  return kinds;
}

void ShardedOptimizer::read(int unit, int kind, Range range, Tensor to, Stream& compute) {
  state_.read(unit, kind, range, to, home(compute), compute);
}

void ShardedOptimizer::write(int unit, int kind, Range range, Tensor from, Stream& compute) {
  state_.write(unit, kind, range, from, home(compute), compute);
}

}  // namespace cleave
