// The engine's state as named records: checkpoints, and whole parameters for tests and export.
#include "checkpoint/checkpoint.h"
#include "device/copy.h"
#include "runtime/engine_state.h"
#include "runtime/host_records.h"

namespace cleave {
namespace {

// Runs of equal length at equal distances, as a tensor that is cut by columns has them, are one record.
void add(std::vector<Record>& out, Record record) {
  const auto next = [](const Record& r) { return static_cast<std::byte*>(r.data.raw()) + r.data.bytes(); };
  if (!out.empty() && out.back().kind == record.kind && out.back().tensor == record.tensor &&
      next(out.back()) == record.data.raw()) {
    Record& last = out.back();
    Elements& e = last.elements;
    const int64_t run = e.stride ? e.run : e.range.size(),
                  stride = record.elements.range.begin - (e.range.end - run);
    if (record.elements.range.size() == run && stride > run && (e.stride == 0 || e.stride == stride)) {
      e = {{e.range.begin, record.elements.range.end}, run, stride};
      last.data = Tensor(last.data.raw(), DType::fp32, {e.numel()}, last.data.memory());
      return;
    }
  }
  out.push_back(std::move(record));
}

}  // namespace

std::vector<Record> Engine::records(bool all_slices) {
  State& s = *state_;
  std::vector<Record> out;
  const std::vector<std::string> kinds = s.all->optimizer.kinds();
  for (int u = 0; u < s.all->store.units(); ++u) {
    if (!all_slices && !s.speaks_for(u)) continue;
    const FlatLayout& layout = s.all->store.layout(u);
    const Range mine = s.all->store.slice(u);
    // Replicas share the work: each saves the part that it counts in the norm.
    const Range part = all_slices ? Range{0, mine.size()} : s.all->store.norm_range(u);
    for (int kind = 0; kind < int(kinds.size()); ++kind)
      for (const FlatLayout::Piece& p : layout.pieces(part.shifted(mine.begin))) {
        const int64_t at = part.begin + p.offset;
        add(out, {kinds[size_t(kind)],
                  layout.param(p.param).name,
                  layout.param(p.param).whole_shape(),
                  {p.elements},
                  s.all->optimizer.record(u, kind).slice({at, at + p.elements.size()})});
      }
  }
  return out;
}

void Engine::save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client) {
  State& s = *state_;
  const HostRecords mine(records(false), s.memory, s.compute);
  cleave::save_checkpoint(dir, tag, mine.here(), to_json(s.at, s.scaler.state(), s.options.seed, client),
                          s.world);
}

std::string Engine::load_checkpoint(const std::string& dir, const std::string& tag) {
  State& s = *state_;
  const CheckpointReader reader(dir, tag);
  const Restored restored = from_json(reader.state(), reader.path().string());
  HostRecords mine(records(true), s.memory, s.compute);
  for (const Record& r : mine.here()) reader.read(r);
  mine.store();
  s.at = restored.at;
  s.options.seed = restored.seed;
  if (s.config.precision == Precision::fp16) s.scaler.restore(restored.scaler);
  s.all->optimizer.publish_masters(s.compute);
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
      copy(
          Tensor(whole.data() + piece.elements.begin, DType::fp32, {piece.elements.size()}, MemoryKind::host),
          s.all->optimizer.record(u, 0).slice({at, at + piece.elements.size()}), s.compute);
    }
  }
  s.compute.synchronize();
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
      if (held != piece.param) s.compute.synchronize(), whole = values(p), held = piece.param;
      CHECK(int64_t(whole.size()) == p.whole_numel(), "{} has {} elements, got {}", p.name, p.whole_numel(),
            whole.size());
      const Range part{piece.offset, piece.offset + piece.elements.size()};
      copy(s.all->optimizer.record(u, 0).slice(part),
           Tensor(whole.data() + piece.elements.begin, DType::fp32, {part.size()}, MemoryKind::host),
           s.compute);
    }
    s.compute.synchronize();
  }
  s.all->optimizer.publish_masters(s.compute);
  s.synchronize();
}

}  // namespace cleave
