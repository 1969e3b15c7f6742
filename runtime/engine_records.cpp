// The engine's state as named records: checkpoints, and whole parameters for tests and export.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "checkpoint/checkpoint.h"
#include "comm/together.h"
#include "runtime/engine_state.h"

namespace cleave {
namespace {

// Elements of one kind of state in the slice of a unit, and what they are called.
struct Place {
  int unit, kind;
  Range at;  // of the slice
  std::string tensor;
  std::vector<int64_t> shape;
  Elements elements;
};

// Runs of equal length at equal distances, as a tensor that is cut by columns has them, are one record.
void add(std::vector<Place>& out, Place place) {
  if (!out.empty() && out.back().unit == place.unit && out.back().kind == place.kind &&
      out.back().tensor == place.tensor && out.back().at.end == place.at.begin) {
    Place& last = out.back();
    Elements& e = last.elements;
    const int64_t run = e.stride ? e.run : e.range.size(),
                  stride = place.elements.range.begin - (e.range.end - run);
    if (place.elements.range.size() == run && stride > run && (e.stride == 0 || e.stride == stride)) {
      e = {{e.range.begin, place.elements.range.end}, run, stride};
      last.at.end = place.at.end;
      return;
    }
  }
  out.push_back(std::move(place));
}

}  // namespace

std::vector<Record> Engine::records(bool all_slices) {
  State& s = *state_;
  std::vector<Place> places;
  SavedState& state = *s.all->state;
  const std::vector<std::string> kinds = state.kinds();
  for (int u = 0; u < s.all->store.units(); ++u) {
    if (!all_slices && !s.speaks_for(u)) continue;
    const FlatLayout& layout = s.all->store.layout(u);
    const Range mine = s.all->store.slice(u);
    // Replicas share the work: each saves the part that it counts in the norm.
    const Range part = all_slices ? Range{0, mine.size()} : s.all->store.norm_range(u);
    for (int kind = 0; kind < (layout.frozen() ? 1 : int(kinds.size())); ++kind)
      for (const FlatLayout::Piece& p : layout.pieces(part.shifted(mine.begin)))
        add(places, {u,
                     kind,
                     Range{0, p.elements.size()}.shifted(part.begin + p.offset),
                     layout.param(p.param).name,
                     layout.param(p.param).whole_shape(),
                     {p.elements}});
  }
  std::vector<Record> out;
  for (const Place& p : places)
    out.push_back({kinds[size_t(p.kind)], p.tensor, p.shape, p.elements,
                   [&s, &state, p](Range r, Tensor to) {
                     state.read(p.unit, p.kind, r.shifted(p.at.begin), to, s.compute);
                   },
                   [&s, &state, p](Range r, Tensor from) {
                     state.write(p.unit, p.kind, r.shifted(p.at.begin), from, s.compute);
                   }});
  return out;
}

void Engine::save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client) {
  State& s = *state_;
  s.optimizer();
  cleave::save_checkpoint(dir, tag, records(false), to_json(s.at, s.scaler.state(), s.options.seed, client),
                          s.world);
}

namespace {

// Refuses a checkpoint that lacks a kind of state, before anything is overwritten.
void require_kinds(const CheckpointReader& reader, const std::vector<std::string>& wanted) {
  std::set<std::string> stored;
  for (const auto& [kind, tensor] : reader.tensors()) stored.insert(kind);
  const bool all =
      std::all_of(wanted.begin(), wanted.end(), [&](auto& kind) { return stored.contains(kind); });
  require(all, Exit::checkpoint,
          "{} holds {}, and this run's optimizer wants {}: it was trained with another one. Train with that, "
          "or begin the optimizer anew from these weights: --reset_optimizer",
          reader.path().string(), fmt::join(stored, ", "), fmt::join(wanted, ", "));
}

}  // namespace

std::string Engine::load_checkpoint(const std::string& dir, const std::string& tag, Load what) {
  State& s = *state_;
  const bool reset = what == Load::no_optimizer;
  std::vector<std::string> kinds = s.all->state->kinds();
  if (reset) kinds.resize(1);  // the weights
  Restored restored;
  together(s.world, Exit::checkpoint, [&] {
    const CheckpointReader reader(dir, tag);
    restored = from_json(reader.state(), reader.path().string());
    require_kinds(reader, kinds);
    for (const Record& r : records(true))
      if (std::find(kinds.begin(), kinds.end(), r.kind) != kinds.end()) reader.read(r);
  });
  s.at = restored.at;
  if (reset) s.at.optimizer_begin = s.at.applied;
  s.options.seed = restored.seed;
  if (s.config.precision == Precision::fp16) s.scaler.restore(restored.scaler);
  s.all->state->publish_masters(s.compute);
  s.synchronize();
  return restored.client;
}

std::vector<float> Engine::parameter(const std::string& name) {
  State& s = *state_;
  std::vector<float> whole;
  for (const UnitSpec& unit : s.model.units())
    for (const ParamSpec& p : unit.params)
      if (p.name == name) whole.resize(size_t(p.whole_numel()));
  require(!whole.empty(), Exit::usage, "the model {} has no parameter {}", s.model.name, name);
  for (int u = 0; u < s.all->store.units(); ++u) {
    const FlatLayout& layout = s.all->store.layout(u);
    const Range part = s.all->store.norm_range(u).shifted(s.all->store.slice(u).begin);
    for (const FlatLayout::Piece& piece : layout.pieces(part)) {
      if (layout.param(piece.param).name != name || !s.speaks_for(u)) continue;
      const int64_t at = part.begin - s.all->store.slice(u).begin + piece.offset;
      s.all->state->read(
          u, 0, {at, at + piece.elements.size()},
          Tensor(whole.data() + piece.elements.begin, DType::fp32, {piece.elements.size()}, MemoryKind::host),
          s.compute);
    }
  }
  // Every element is nonzero on one rank only, so the sum is exact.
  s.world.all_reduce(Tensor(whole.data(), DType::fp32, {int64_t(whole.size())}, MemoryKind::host), s.comm(),
                     {.what = "a whole parameter"});
  s.comm().synchronize();
  return whole;
}

void Engine::set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values) {
  State& s = *state_;
  for (int u = 0; u < s.all->store.units(); ++u) {
    const FlatLayout& layout = s.all->store.layout(u);
    int held = -1;  // the parameter whose values are in `whole`
    std::vector<float> whole;
    for (const FlatLayout::Piece& piece : layout.pieces(s.all->store.slice(u))) {
      const ParamSpec& p = layout.param(piece.param);
      if (held != piece.param) whole = values(p), held = piece.param;
      CHECK(int64_t(whole.size()) == p.whole_numel(), "{} has {} elements, got {}", p.name, p.whole_numel(),
            whole.size());
      const Range part{piece.offset, piece.offset + piece.elements.size()};
      s.all->state->write(
          u, 0, part,
          Tensor(whole.data() + piece.elements.begin, DType::fp32, {part.size()}, MemoryKind::host),
          s.compute);
    }
  }
  s.all->state->publish_masters(s.compute);
  s.synchronize();
}

}  // namespace cleave
