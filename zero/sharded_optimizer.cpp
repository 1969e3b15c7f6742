#include "zero/sharded_optimizer.h"

#include <algorithm>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::zero {
namespace {

void cast_to_copy(const optim::UpdateSlice& piece, Range, Stream& stream) {
  kernels::launch(kernels::Cast{.y = piece.copy, .x = piece.param}, stream);
}

// Cuts `numel` elements into pieces if `cut` is set, or returns one range.
std::vector<Range> pieces(int64_t numel, bool cut) {
  std::vector<Range> all;
  for (Range r{0, 0}; r.begin < numel; r.begin = r.end) {
    r.end = cut ? std::min(numel, r.begin + StagedUpdate::kPiece) : numel;
    all.push_back(r);
  }
  return all;
}

std::vector<int> frozen_units(const ParameterStore& store) {
  std::vector<int> units;
  for (int u = 0; u < store.units(); ++u)
    if (store.layout(u).frozen()) units.push_back(u);
  return units;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Memory& memory, ParameterStore& store,
                                   std::unique_ptr<optim::Optimizer> optimizer,
                                   const offload::Placement& placement,
                                   std::vector<comm::CuttingAxis> cutting)
    : store_(store),
      cutting_(std::move(cutting)),
      optimizer_(std::move(optimizer)),
      state_(memory, placement, slices_of(store), 1 + int(optimizer_->states().size())),
      frozen_(frozen_units(store)),
      frozen_weights_(memory, store, frozen_),
      homes_(memory) {
  for (int u = 0; u < store.units(); ++u) history_.emplace_back(size_t(store.layout(u).params()));
  if (store.units() > 0) add_sides(memory, placement);
  for (Side* side : {&host_, &device_})
    side->worked.resize(size_t(store.units())), side->done.resize(size_t(store.units()));
  if (!optimizer_->prepares()) return;
  std::optional<MemoryKind> second;
  if (away_) second = away_ == &host_ ? MemoryKind::pinned : MemoryKind::device;
  whole_ = std::make_unique<WholeParameters>(memory, store, cutting_, second);
}

// State on the device is updated there: on compute, or staged if kernels cannot reach its working copy. Other
// state is updated on the device if the placement says so, and otherwise on the host, which is compute on a
// CPU rank.
void ShardedOptimizer::add_sides(Memory& memory, const offload::Placement& placement) {
  const bool off_device = placement.optimizer != MemoryKind::device, cuda = memory.device().is_cuda();
  const bool streams = off_device && placement.update == offload::UpdateSide::device;
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
  auto add = [&](Side& side, offload::UpdateSide where, int kinds, bool moves_gradients, bool moves_weights) {
    StagedUpdate::Travels travels{.kinds = kinds};
    if (moves_gradients) travels.gradients = store_.options().gradients;
    if (moves_weights) travels.weights = store_.options().weights;
    side.staged = std::make_unique<StagedUpdate>(memory, where, travels, largest);
  };
  const bool on_device = gradients == MemoryKind::device;
  if (off_device && cuda && !streams) add(host_, offload::UpdateSide::host, 0, on_device, weights_on_device);
  if (streams || (cuda && here && weights_at_home))
    add(device_, offload::UpdateSide::device, streams ? state_.kinds() : 0, !on_device, weights_at_home);
  if (streams || host_.staged) away_ = streams ? &device_ : &host_;
  const int64_t decoded = store_.gradient_form().decoded_numel(std::min(largest, StagedUpdate::kPiece));
  if (decoded == 0) return;
  auto add_gradient = [&](Side& side, MemoryKind kind) {
    side.gradient =
        memory.allocate(kind, Category::staging, DType::fp32, {decoded}, "gradients for the update");
  };
  if (here) add_gradient(here_, gradients);
  if (host_.staged) add_gradient(host_, MemoryKind::pinned);
  if (device_.staged) add_gradient(device_, MemoryKind::device);
}

ShardedOptimizer::Side& ShardedOptimizer::side_of(const optim::UpdateSlice& slice) {
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
    bytes.disk_tiles += int64_t(tile.home == MemoryKind::disk);
    bytes.state += state, bytes.read += (whole_ ? 2 : 1) * state, bytes.written += state;
    const Tensor gradient = store_.gradient_slice(tile.unit), weights = store_.weights_slice(tile.unit);
    auto on_device = [](const Tensor& t) { return t.memory() == MemoryKind::device; };
    (on_device(gradient) ? bytes.gradients_here : bytes.gradients_at_home) += n * size_of(gradient.dtype());
    if (state_.separate(tile))
      (on_device(weights) ? bytes.weights_here : bytes.weights_at_home) += n * size_of(weights.dtype());
  }
  return bytes;
}

void ShardedOptimizer::initialize(uint64_t seed, Stream& compute) {
  fill_frozen(seed, compute);
  publish_all(
      {}, {0, 1},
      [&](int unit, Range of_slice, Tensor master, Stream& stream) {
        fill(unit, of_slice, master, seed, stream);
      },
      compute);
}

// Fills on the host and through the loader, piece by piece, because frozen units have no fp32 copy.
void ShardedOptimizer::fill_frozen(uint64_t seed, Stream& compute) {
  std::vector<float> values;
  for (const int u : frozen_)
    for (const Range& r : pieces(store_.slice(u).size(), true)) {
      values.resize(size_t(r.size()));
      const Tensor piece(values.data(), DType::fp32, {r.size()}, MemoryKind::host);
      fill(u, r, piece, seed, frozen_weights_.host());
      frozen_weights_.write(u, 0, r, piece, compute);
    }
  frozen_weights_.publish_masters(compute);
}

void ShardedOptimizer::publish_masters(Stream& compute) {
  frozen_weights_.publish_masters(compute);  // first: the last unit written may still hold a disk buffer
  publish_all(
      {0, 1}, {}, [](int, Range, Tensor, Stream&) {}, compute);
}

void ShardedOptimizer::publish_all(Range read, Range write, const GiveValues& give, Stream& compute) {
  return_to_device(compute);
  if (away_) away_->staged->begin_walk();
  state_.walk(read, write, [&](const StateHome::Tile& tile, const State& state, const Event& ready) {
    optim::UpdateSlice slice;
    slice.param = state[0];
    if (state_.separate(tile)) slice.copy = store_.next_weights_slice(tile.unit).slice(tile.range);
    const auto kernels = [&](const optim::UpdateSlice& piece, Range range, Stream& stream) {
      give(tile.unit, range.shifted(tile.range.begin), piece.param, stream);
      if (piece.copy.defined()) kernels::launch(kernels::Cast{.y = piece.copy, .x = piece.param}, stream);
    };
    const Event done = run(tile.unit, slice, kernels, ready, compute);
    if (tile.last) publish(tile.unit);
    return done;
  });
  store_.wait_for_weights();
}

void ShardedOptimizer::fill(int unit, Range of_slice, Tensor master, uint64_t seed, Stream& stream) const {
  if (stream.dry()) return;  // finding the pieces is half of the time of a plan
  const FlatLayout& layout = store_.layout(unit);
  kernels::launch(kernels::Fill{.y = master, .value = 0},
                  stream);  // zeros also overwrite earlier values of parameters and padding
  for (const FlatLayout::Piece& piece : layout.pieces(of_slice.shifted(store_.slice(unit).begin))) {
    const ParamSpec& param = layout.param(piece.param);
    const Tensor part = master.slice({piece.offset, piece.offset + piece.elements.size()});
    const bool random = param.init.kind == Init::Kind::normal || param.init.kind == Init::Kind::uniform;
    if (random)
      kernels::launch(kernels::RandomFill{.y = part,
                                          .philox = {seed, hash_name(param.name)},
                                          .first = piece.elements.begin,
                                          .scale = param.init.scale,
                                          .normal = param.init.kind == Init::Kind::normal},
                      stream);
    else if (param.init.kind == Init::Kind::ones)
      kernels::launch(kernels::Fill{.y = part, .value = 1}, stream);
  }
}

void ShardedOptimizer::square_gradients(Tensor sums, Stream& compute) {
  const GradientForm& form = store_.gradient_form();
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (int u = 0; u < store_.units(); ++u) {
    for (const Range& counted : store_.counted(u)) {
      const Tensor x = store_.gradient_slice(u).slice(store_.layout(u).frozen() ? Range{} : counted);
      const Tensor out = sums.slice(Range{0, form.squares_of_part()}.shifted(end));
      homes_.run(x.memory(), compute, [&](Stream& stream) { form.square(out, x, stream); });
      end += form.squares_of_part();
    }
    ends.push_back(end);
  }
  form.square_all(sums.slice({end, sums.numel()}), compute);
  store_.sum_over_slices(sums, ends, "squared gradient norm", true);
  for (size_t u = 0; u < ends.size(); ++u) {
    if (!repeats_sums(int(u))) continue;
    const Tensor same = sums.slice({u > 0 ? ends[u - 1] : 0, ends[u]});
    homes_.run(same.memory(), compute,
               [&](Stream& stream) { kernels::launch(kernels::Fill{.y = same}, stream); });
  }
}

// All ranks of an axis that divides the unit's slices have their sum by now; only the first one contributes
// it.
bool ShardedOptimizer::repeats_sums(int unit) const {
  const AxisSet divide = sharing_axes(store_.layout(unit).cut_by());
  return std::any_of(cutting_.begin(), cutting_.end(),
                     [&](const comm::CuttingAxis& a) { return divide.has(a.axis) && a.ranks->rank() > 0; });
}

// Results have the same bits for every cut of a slice and every order of units: kernels are elementwise, or
// sum whole ranges.
Event ShardedOptimizer::run(int unit, const optim::UpdateSlice& slice, const StagedUpdate::Kernels& kernels,
                            const Event& ready, Stream& compute) {
  Side& side = side_of(slice);
  const bool decodes = slice.grad.defined() && side.gradient.defined();
  const auto with_gradient = [&](optim::UpdateSlice piece, Range range, Stream& stream) {
    if (decodes) {
      const Tensor gradient = side.gradient.tensor().slice({0, range.size()});
      store_.gradient_form().decode(gradient, piece.grad, stream);
      piece.grad = gradient;
    }
    kernels(piece, range, stream);
  };
  if (side.staged) {
    side.staged->wait(ready), side.staged->wait(compute.record());
    side.done[size_t(unit)] = side.staged->run(with_gradient, slice, state_.read(), state_.written());
    side.worked[size_t(unit)] = side.staged->worked();
    return side.done[size_t(unit)];
  }
  compute.wait(ready);
  for (const Range& r : pieces(slice.param.numel(), decodes)) with_gradient(slice.slice(r), r, compute);
  return compute.record();
}

// Both sides may update tiles of a unit, independently of each other. Errors of host kernels surface on the
// stream that waits for their events.
void ShardedOptimizer::publish(int unit) {
  const auto u = size_t(unit);
  const Event updated[] = {host_.worked[u], host_.done[u], device_.done[u]};
  store_.publish(unit, updated);
}

std::vector<ShardedOptimizer::KernelRange> ShardedOptimizer::kernel_ranges(int unit) const {
  const FlatLayout& layout = store_.layout(unit);
  const Range mine = store_.slice(unit);
  std::vector<KernelRange> ranges;
  const std::vector<Updates>& history = history_[size_t(unit)];
  const bool by_parameter = optimizer_->by_parameter();
  const bool apart = by_parameter || std::any_of(history.begin(), history.end(),
                                                 [](const Updates& u) { return u.paused || u.missed > 0; });
  if (!apart)
    for (const FlatLayout::DecayRange& group : layout.decay_ranges(mine))
      ranges.push_back({group.range, group.decay});
  for (int p = 0; apart && p < layout.params(); ++p)
    ranges.push_back({intersect(layout.range(p), mine).shifted(-mine.begin), layout.decays(p),
                      by_parameter ? p : -1, history[size_t(p)]});
  return ranges;
}

void ShardedOptimizer::visit(int unit, bool update, const optim::StepArgs& of_all, Stream& compute) {
  const optim::StepArgs of_unit = of_all.of(store_.layout(unit).group());
  const std::vector<KernelRange> ranges = kernel_ranges(unit);
  state_.visit(unit, [&](const StateHome::Tile& tile, const State& state, const Event& ready) {
    // Staged updates have their own streams in the trace; other updates off the device get a separate track.
    const char* what = tile.home == MemoryKind::device ? "step" : "update";
    const TraceSpan seen(away_ ? nullptr : trace_, compute, what, store_.layout(unit).name());
    Event done = ready;
    for (const KernelRange& part : ranges) {
      const Range r = intersect(part.range, tile.range), here = r.shifted(-tile.range.begin);
      if (r.empty()) continue;
      optim::UpdateSlice slice{
          .param = state[0].slice(here), .grad = {}, .copy = {}, .state = {}, .decay = part.decay};
      if (update && state_.separate(tile)) slice.copy = store_.next_weights_slice(unit).slice(r);
      if (part.history.paused) {
        if (slice.copy.defined()) done = run(unit, slice, cast_to_copy, ready, compute);
        continue;
      }
      optim::StepArgs args = of_unit;
      args.step -= part.history.missed;
      for (int s = 1; s < state_.kinds(); ++s) slice.state[size_t(s - 1)] = state[size_t(s)].slice(here);
      if (!update || !whole_) slice.grad = store_.gradient_slice(unit).slice(r);
      if (update && whole_) slice.squares = whole_->sums(unit, part.param);
      if (part.param >= 0) {
        const int64_t first = store_.slice(unit).begin - store_.layout(unit).range(part.param).begin;
        slice.unit = unit, slice.parameter = part.param, slice.elements = r.shifted(first);
      }
      const Tensor squares =
          update ? Tensor() : whole_->slot(unit, part.param, tile.home != MemoryKind::device);
      const auto kernels = [&](const optim::UpdateSlice& piece, Range, Stream& stream) {
        update ? optimizer_->update(piece, args, stream) : optimizer_->prepare(piece, args, squares, stream);
      };
      done = run(unit, slice, kernels, ready, compute);
    }
    return done;
  });
}

void ShardedOptimizer::begin_step(const std::optional<optim::StepArgs>& ahead, std::vector<bool> late,
                                  Stream& compute) {
  return_to_device(compute);
  ahead_ = whole_ ? std::nullopt : ahead, late_ = std::move(late), compute_ = &compute;
  // Weights on disk share a ring of buffers with the gathers of the backward pass.
  for (int u = 0; u < store_.units(); ++u)
    if (store_.weights_slice(u).memory() == MemoryKind::disk) late_[size_t(u)] = true;
  expected_.clear(), updated_.clear();
  begin_walk({0, state_.kinds()}, {whole_ ? 1 : 0, state_.kinds()});
}

void ShardedOptimizer::begin_walk(Range read, Range write) {
  if (away_) away_->staged->begin_walk();
  state_.begin_walk(read, write);
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

void ShardedOptimizer::finish_step(const optim::StepArgs& args) {
  // In the expected order, then the late ones.
  std::vector<int> late;
  for (int u = 0; u < store_.units(); ++u)
    if (!store_.layout(u).frozen() && std::find(expected_.begin(), expected_.end(), u) == expected_.end())
      late.push_back(u);
  state_.expect(late);
  expected_.insert(expected_.end(), late.begin(), late.end());
  if (whole_) prepare(args);
  for (const int u : expected_) {
    const bool done = std::find(updated_.begin(), updated_.end(), u) != updated_.end();
    if (!done) visit(u, true, args, *compute_);
    publish(u);
  }
  state_.end_walk();
  store_.wait_for_weights();
  for (std::vector<Updates>& unit : history_)
    for (Updates& parameter : unit) parameter.missed += parameter.paused;
}

// Walk before the update: moments, and the sums over whole parameters.
void ShardedOptimizer::prepare(const optim::StepArgs& args) {
  whole_->clear(*compute_, second(*compute_));
  for (const int u : expected_) visit(u, false, args, *compute_);
  state_.end_walk();
  whole_->add_up(*compute_, second(*compute_));
  begin_walk({0, state_.kinds()}, {0, 1});
  state_.expect(expected_);
}

void ShardedOptimizer::leave_device(Range kinds, MemoryKind to, Stream& compute) {
  settle(compute);
  has_left_ = true;
  state_.move_from_device(kinds, to, compute);
}

void ShardedOptimizer::return_to_device(Stream& compute) {
  if (!has_left_) return;
  settle(compute);
  state_.move_from_device({0, state_.kinds()}, MemoryKind::device, compute);
  has_left_ = false;
}

void ShardedOptimizer::show_in(Trace& trace, Stream& compute) {
  trace_ = &trace;
  trace.name(compute, "host updates", "update");
  state_.show_in(trace);
  for (const Side* side : {&host_, &device_})
    if (side->staged) side->staged->show_in(trace);
}

void ShardedOptimizer::settle(Stream& compute) {
  for (const Side* side : {&host_, &device_})
    if (side->staged) side->staged->synchronize();
  compute.synchronize();
}

void ShardedOptimizer::read(int unit, int kind, Range range, Tensor to, Stream& compute) {
  settle(compute);
  if (store_.layout(unit).frozen()) return frozen_weights_.read(unit, kind, range, to, compute);
  state_.read(unit, kind, range, to, compute);
}

void ShardedOptimizer::write(int unit, int kind, Range range, Tensor from, Stream& compute) {
  settle(compute);
  if (store_.layout(unit).frozen()) return frozen_weights_.write(unit, kind, range, from, compute);
  state_.write(unit, kind, range, from, compute);
}

}  // namespace cleave::zero
