#include "zero/state_home.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::zero {
namespace {

constexpr int64_t kWidth = size_of(DType::fp32);

// Returns the kinds `which` of a tile of n elements with consecutive kinds.
Tensor kinds_of(const Tensor& all, int64_t n, Range which) {
  return all.slice({which.begin * n, which.end * n});
}

Category category_of(int kind) { return kind == 0 ? Category::master : Category::optimizer_state; }

// Copies with all threads of a rank that computes on the host.
void transfer(Tensor to, Tensor from, Stream& compute) {
  if (compute.on_cuda()) return copy(to, from, compute);
  kernels::launch(kernels::Cast{.y = to, .x = from}, compute);
}

}  // namespace

StateHome::StateHome(Memory& memory, const offload::Placement& placement, const std::vector<Slice>& units,
                     int kinds)
    : memory_(memory), kinds_(kinds) {
  CHECK(0 < kinds && kinds <= kMostKinds, "{} kinds of state", kinds);
  lay_out(placement, units);
  for (size_t t = 0; t < tiles_.size(); ++t)
    if (tiles_[t].home == MemoryKind::disk)
      on_disk_.push_back(t);
    else
      keep_in_memory(t, units[size_t(tiles_[t].unit)]);
  if (!on_disk_.empty()) open_file(memory, placement.disk);
}

void StateHome::lay_out(const offload::Placement& placement, const std::vector<Slice>& units) {
  for (size_t u = 0; u < units.size(); ++u) {
    first_.push_back(tiles_.size());
    weights_.push_back(units[u].weights);
    if (units[u].frozen) continue;
    const int64_t numel = units[u].weights.numel();
    const bool away = placement.optimizer != MemoryKind::device;
    const int64_t cut = away ? std::llround(placement.ratio * double(numel)) : 0;
    const int64_t most = placement.optimizer == MemoryKind::disk ? placement.disk.tile_numel : numel;
    for (Range r{0, 0}; r.begin < cut; r.begin = r.end) {
      r.end = std::min(cut, r.begin + most);
      tiles_.push_back({int(u), r, placement.optimizer, false, {}});
    }
    if (cut < numel || numel == 0) tiles_.push_back({int(u), {cut, numel}, MemoryKind::device, false, {}});
    tiles_.back().last = true;
  }
  first_.push_back(tiles_.size());
}

void StateHome::keep_in_memory(size_t t, const Slice& slice) {
  Tile& tile = tiles_[t];
  const bool own = slice.weights.dtype() != DType::fp32 || tile.home != slice.weights.memory();
  if (!own) tile.state[0] = slice.weights.slice(tile.range);
  for (int k = own ? 0 : 1; k < kinds_; ++k) {
    kept_.push_back(
        {t, k, memory_.allocate(tile.home, category_of(k), DType::fp32, {tile.range.size()}, slice.name)});
    tile.state[size_t(k)] = kept_.back().memory;
  }
}

void StateHome::open_file(Memory& memory, const offload::DiskHome& home) {
  int64_t bytes = 0, masters = 0, largest = 0;
  for (const size_t t : on_disk_) {
    Tile& tile = tiles_[t];
    tile.at = bytes;
    bytes += round_up(kinds_ * tile.range.size() * kWidth, offload::DiskFile::kAlignment);
    masters += tile.range.size() * kWidth;
    largest = std::max(largest, kinds_ * tile.range.size());
  }
  if (kinds_ == 1) masters = bytes;
  file_ = std::make_unique<offload::DiskFile>(
      memory, home.folder, home.name,
      std::vector<std::pair<Category, int64_t>>{{Category::master, masters},
                                                {Category::optimizer_state, bytes - masters}},
      home.options, home.key);
  // Align slots so that the disk can write them directly.
  const int64_t count = std::min(int64_t(home.buffers), int64_t(on_disk_.size()));
  const int64_t block = offload::DiskFile::kAlignment / kWidth, stride = round_up(largest, block);
  slots_memory_ = memory.allocate(home.staging, Category::staging, DType::fp32, {count * stride + block},
                                  "tiles on their way to and from the disk");
  const Tensor all = slots_memory_;
  const auto address = reinterpret_cast<intptr_t>(all.raw());
  const int64_t skip = (round_up(address, offload::DiskFile::kAlignment) - address) / kWidth;
  for (int64_t i = 0; i < count; ++i)
    slots_.push_back(all.slice({skip + i * stride, skip + i * stride + largest}));
  loaded_.resize(slots_.size()), stored_.resize(slots_.size());
  const auto mode = memory.dry() ? Stream::Mode::dry : Stream::Mode::worker;
  reader_ = std::make_unique<Stream>(mode), writer_ = std::make_unique<Stream>(mode);
}

void StateHome::move_from_device(Range kinds, MemoryKind to, Stream& compute) {
  std::vector<std::pair<Kept*, Buffer>> moved;
  for (Kept& kept : kept_) {
    const Tensor from = kept.memory;
    if (tiles_[kept.tile].home != MemoryKind::device || from.memory() == to ||
        !(kinds.begin <= kept.kind && kept.kind < kinds.end))
      continue;
    moved.emplace_back(&kept, memory_.allocate(to, category_of(kept.kind), DType::fp32, {from.numel()},
                                               "state of the optimizer that moves"));
    transfer(moved.back().second, from, compute);
  }
  compute.synchronize();
  for (auto& [kept, memory] : moved) {
    kept->memory = std::move(memory);
    tiles_[kept->tile].state[size_t(kept->kind)] = kept->memory;
  }
}

void StateHome::show_in(Trace& trace) {
  if (!file_) return;
  trace_ = &trace;
  trace.name(*reader_, "state read from disk"), trace.name(*writer_, "state written to disk");
}

bool StateHome::separate(const Tile& tile) const {
  return tile.home == MemoryKind::disk ||
         tile.state[0].raw() != weights_[size_t(tile.unit)].slice(tile.range).raw();
}

void StateHome::begin_walk(Range read, Range write) {
  walk_ = {.read = read, .write = write};
  if (reader_) reader_->wait(writer_->record());  // sees every tile as the previous walk left it
}

void StateHome::expect(std::span<const int> units) {
  for (const int u : units)
    for (size_t t = first_[size_t(u)]; t < first_[size_t(u) + 1]; ++t)
      if (tiles_[t].home == MemoryKind::disk) walk_.tiles.push_back(t);
  fetch();
}

void StateHome::fetch() {
  for (; walk_.fetched < std::min(walk_.tiles.size(), walk_.used + slots_.size()); ++walk_.fetched) {
    const Tile& tile = tiles_[walk_.tiles[walk_.fetched]];
    const size_t at = walk_.fetched % slots_.size();
    const int64_t n = tile.range.size();
    reader_->wait(stored_[at]);
    if (!walk_.read.empty()) {
      const TraceSpan seen(trace_, *reader_, "disk", "read");
      file_->read(kinds_of(slots_[at], n, walk_.read), tile.at + walk_.read.begin * n * kWidth, *reader_);
    }
    loaded_[at] = reader_->record();
  }
}

void StateHome::visit(int unit, const Body& body) {
  for (size_t t = first_[size_t(unit)]; t < first_[size_t(unit) + 1]; ++t) {
    const Tile& tile = tiles_[t];
    if (tile.home != MemoryKind::disk) {
      body(tile, tile.state, {});
      continue;
    }
    if (walk_.used == 0) writer_->synchronize();  // waits for the previous walk
    CHECK(walk_.used < walk_.tiles.size() && walk_.tiles[walk_.used] == t, "unit {} is not expected", unit);
    fetch();
    const size_t at = walk_.used++ % slots_.size();
    const int64_t n = tile.range.size();
    std::array<Tensor, kMostKinds> state;
    for (int k = 0; k < kinds_; ++k) state[size_t(k)] = kinds_of(slots_[at], n, {k, k + 1});
    stored_[at] = body(tile, state, loaded_[at]);
    if (walk_.write.empty()) continue;
    writer_->wait(stored_[at]);
    {
      const TraceSpan seen(trace_, *writer_, "disk", "write");
      file_->write(kinds_of(slots_[at], n, walk_.write), tile.at + walk_.write.begin * n * kWidth, *writer_);
    }
    stored_[at] = writer_->record();
  }
}

void StateHome::end_walk() {
  if (reader_) reader_->synchronize();
}

void StateHome::walk(Range read, Range write, const Body& body) {
  std::vector<int> units(weights_.size());
  std::iota(units.begin(), units.end(), 0);
  Walk under_way = std::exchange(walk_, {});
  begin_walk(read, write);
  expect(units);
  for (const int u : units) visit(u, body);
  end_walk();
  walk_ = std::move(under_way);
  forget_read_ahead();
}

// Calls move(tile, range in the tile, range relative to `range`) for every part, and waits.
template <class Move>
void StateHome::each_part(int unit, Range range, Stream& compute, const Move& move) {
  if (writer_) writer_->synchronize();
  for (size_t t = first_[size_t(unit)]; t < first_[size_t(unit) + 1]; ++t) {
    const Tile& tile = tiles_[t];
    const Range both = intersect(tile.range, range);
    if (!both.empty()) move(tile, both.shifted(-tile.range.begin), both.shifted(-range.begin));
  }
  compute.synchronize();
  if (reader_) reader_->synchronize(), writer_->synchronize();
}

void StateHome::read(int unit, int kind, Range range, Tensor to, Stream& compute) {
  each_part(unit, range, compute, [&](const Tile& tile, Range in_tile, Range in_range) {
    const int64_t at = tile.at + (kind * tile.range.size() + in_tile.begin) * kWidth;
    if (tile.home == MemoryKind::disk)
      file_->read(to.slice(in_range), at, *reader_);
    else
      transfer(to.slice(in_range), tile.state[size_t(kind)].slice(in_tile), compute);
  });
}

void StateHome::write(int unit, int kind, Range range, Tensor from, Stream& compute) {
  each_part(unit, range, compute, [&](const Tile& tile, Range in_tile, Range in_range) {
    const int64_t at = tile.at + (kind * tile.range.size() + in_tile.begin) * kWidth;
    if (tile.home == MemoryKind::disk)
      file_->write(from.slice(in_range), at, *writer_);
    else
      transfer(tile.state[size_t(kind)].slice(in_tile), from.slice(in_range), compute);
  });
  forget_read_ahead();
}

}  // namespace cleave::zero
