#include "zero/sharded_optimizer.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave {
namespace {

constexpr int64_t kTile = int64_t{1} << 20;  // elements of tile_, at most

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
                                   std::unique_ptr<Optimizer> optimizer, const Placement& placement,
                                   Communicator& tensor)
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
  if (memory.device().is_cuda() && placement.optimizer != MemoryKind::device && store.units() > 0) {
    const Tensor gradient = store.gradient_slice(0);
    host_ = std::make_unique<HostUpdate>(memory, store.weights_slice(0).dtype(),
                                         exact ? DType::fp32 : gradient.dtype(),
                                         gradient.memory() == MemoryKind::device);
  }
  done_.resize(size_t(store.units()));
  if (optimizer_->prepares())
    whole_ = std::make_unique<WholeParameters>(memory, store, tensor, host_ != nullptr);
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
  Event& done = done_[size_t(tile.unit)];
  if (state_.separate(tile)) {
    const Tensor weights = store_.next_weights_slice(tile.unit).slice(tile.range);
    if (on_host(tile.home))
      done = host_->publish(weights, master, compute.record());
    else
      for (const Range& r : pieces(weights.numel(), !homes_.reaches(weights.memory())))
        in_reach(weights.slice(r), compute,
                 [&](Tensor copy) { launch(Cast{.y = copy, .x = master.slice(r)}, compute); });
  } else if (on_host(tile.home)) {
    done = home(compute).record();
  }
  if (tile.last) store_.publish(tile.unit, done);
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

// The same bits however a slice is cut, and whichever unit comes first: kernels are elementwise, or their
// sums are of whole parts.
void ShardedOptimizer::run(int unit, const UpdateSlice& slice, const HostUpdate::Kernels& kernels,
                           Stream& compute) {
  const bool exact = slice.grad.defined() && slice.grad.dtype() == DType::int64;
  const bool host = on_host(slice.param.memory());
  const bool far = !host && slice.copy.defined() && !homes_.reaches(slice.copy.memory());
  for (const Range& r : pieces(slice.param.numel(), exact || far)) {
    UpdateSlice piece = slice.slice(r);
    if (exact) {
      const Tensor gradient = tile_.tensor().slice({0, r.size()});
      homes_.run(gradient.memory(), compute, [&](Stream& stream) {
        launch(
            FromGrid{.y = gradient, .x = piece.grad, .scale = float(std::ldexp(1.0, -store_.options().grid))},
            stream);
      });
      piece.grad = gradient;
    }
    if (host) {
      done_[size_t(unit)] = host_->update(kernels, piece, compute.record());
      if (exact) compute.wait(done_[size_t(unit)]);  // the gradient's place is needed again
    } else if (!piece.copy.defined()) {
      kernels(piece, compute);
    } else {
      in_reach(piece.copy, compute, [&](Tensor reached) {
        piece.copy = reached;
        kernels(piece, compute);
      });
    }
  }
}

std::vector<ShardedOptimizer::Part> ShardedOptimizer::parts_of(int unit) const {
  const FlatLayout& layout = store_.layout(unit);
  const Range mine = store_.slice(unit);
  std::vector<Part> parts;
  if (!whole_)
    for (const FlatLayout::Group& group : layout.groups(mine)) parts.push_back({group.range, group.decay});
  for (int p = 0; whole_ && p < layout.params(); ++p)
    parts.push_back({intersect(layout.range(p), mine).shifted(-mine.begin), layout.param(p).decay, p});
  return parts;
}

void ShardedOptimizer::visit(int unit, bool update, const StepArgs& args, Stream& compute) {
  const std::vector<Part> parts = parts_of(unit);
  state_.visit(unit, home(compute), [&](const StateHome::Tile& tile, const State& state) {
    // What the host of a GPU rank updates, its own streams show.
    const bool away = tile.home != MemoryKind::device && !host_;
    const TraceSpan seen(away ? trace_ : nullptr, compute, "update", store_.layout(unit).name());
    for (const Part& part : parts) {
      const Range r = intersect(part.range, tile.range), here = r.shifted(-tile.range.begin);
      if (r.empty()) continue;
      UpdateSlice slice{
          .param = state[0].slice(here), .grad = {}, .copy = {}, .state = {}, .decay = part.decay};
      for (int s = 1; s < state_.kinds(); ++s) slice.state[size_t(s - 1)] = state[size_t(s)].slice(here);
      if (!update || !whole_) slice.grad = store_.gradient_slice(unit).slice(r);
      if (update && state_.separate(tile)) slice.copy = store_.next_weights_slice(unit).slice(r);
      if (update && whole_) slice.squares = whole_->sums(unit, part.param);
      const Tensor squares = update ? Tensor() : whole_->place(unit, part.param, on_host(tile.home));
      run(
          unit, slice,
          [&](const UpdateSlice& piece, Stream& stream) {
            update ? optimizer_->update(piece, args, stream)
                   : optimizer_->prepare(piece, args, squares, stream);
          },
          compute);
    }
  });
}

void ShardedOptimizer::begin_step(const std::optional<StepArgs>& ahead, std::vector<bool> late,
                                  Stream& compute) {
  ahead_ = whole_ ? std::nullopt : ahead, late_ = std::move(late), compute_ = &compute;
  // Buffers of weights on disk are used in turn, by the gathers of the backward as well.
  for (int u = 0; u < store_.units(); ++u)
    if (store_.weights_slice(u).memory() == MemoryKind::disk) late_[size_t(u)] = true;
  expected_.clear(), updated_.clear();
  state_.begin_walk({0, state_.kinds()}, {whole_ ? 1 : 0, state_.kinds()});
}

void ShardedOptimizer::expect(std::span<const int> units) {
  std::vector<int> next;
  for (const int u : units)
    if (!ahead_ || !late_[size_t(u)]) next.push_back(u);
  expected_.insert(expected_.end(), next.begin(), next.end());
  state_.expect(next);
}

void ShardedOptimizer::complete(int unit) {
  if (!ahead_ || late_[size_t(unit)]) return;
  visit(unit, true, *ahead_, *compute_);
  updated_.push_back(unit);
}

void ShardedOptimizer::finish_step(const StepArgs& args) {
  // In the order in which they were expected, and then those that are late.
  std::vector<int> late;
  for (int u = 0; u < store_.units(); ++u)
    if (std::find(expected_.begin(), expected_.end(), u) == expected_.end()) late.push_back(u);
  state_.expect(late);
  expected_.insert(expected_.end(), late.begin(), late.end());
  if (whole_) prepare(args);
  for (const int u : expected_) {
    const bool done = std::find(updated_.begin(), updated_.end(), u) != updated_.end();
    if (!done) visit(u, true, args, *compute_);
    store_.publish(u, done_[size_t(u)]);
  }
  state_.end_walk();
  store_.wait_for_weights();
}

// The walk before the update's: moments, and the sums over whole parameters.
void ShardedOptimizer::prepare(const StepArgs& args) {
  whole_->clear(*compute_, home(*compute_));
  for (const int u : expected_) visit(u, false, args, *compute_);
  state_.end_walk();
  whole_->add_up(*compute_, home(*compute_));
  state_.begin_walk({0, state_.kinds()}, {0, 1});
  state_.expect(expected_);
}

void ShardedOptimizer::show_in(Trace& trace, Stream& compute) {
  trace_ = &trace;
  trace.name(compute, "host updates", "update");
  state_.show_in(trace);
  if (host_) host_->show_in(trace);
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
