#include "runtime/step/state_copier.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

constexpr int64_t kReadAtOnce = int64_t{1} << 21;  // elements per Record::read()

// Copies on a separate thread if no stream of the passes takes part: these read state on disk, and layer
// state on a GPU. The capture of a CUDA graph does not allow other work either.
Stream::Mode mode_of(const Settings& s, const Memory& memory, bool has_layer_state) {
  const bool disk = s.state_home.optimizer == MemoryKind::disk || s.shard_home.parameters == MemoryKind::disk;
  const bool beside = !disk && !s.graphs && !(has_layer_state && s.device.is_cuda());
  return memory.dry() ? Stream::Mode::dry : beside ? Stream::Mode::worker : Stream::Mode::inline_;
}

std::set<std::string> frozen_parameters(const zero::ParameterStore& store) {
  std::set<std::string> names;
  for (int u = 0; u < store.units(); ++u)
    for (int p = 0; store.layout(u).frozen() && p < store.layout(u).params(); ++p)
      names.insert(store.layout(u).param(p).name);
  return names;
}

void in_pieces(const checkpoint::Record& r, std::byte* memory, const checkpoint::Record::Move& move) {
  const Tensor all(memory, r.dtype, {r.elements.numel()}, MemoryKind::host);
  for (Range piece{0, 0}; piece.begin < all.numel(); piece.begin = piece.end) {
    piece.end = std::min(all.numel(), piece.begin + kReadAtOnce);
    move(piece, all.slice(piece));
  }
}

}  // namespace

StateCopier::StateCopier(const Settings& settings, RankState& rank, Computation& computes, Memory& memory,
                         StateCopies* to)
    : copies_(to),
      scratch_(memory.device().is_cuda() ? allocate_workspace(memory, kCopyScratch) : Workspace{}),
      reads_(memory.dry() ? Device{} : memory.device(),
             memory.dry() ? Stream::Mode::dry : Stream::Mode::inline_),
      worker_(mode_of(settings, memory, !computes.records(Computation::Whose::held).empty())) {
  if (memory.device().is_cuda() && !memory.dry()) scratch_.lend_to(reads_);
  std::vector<checkpoint::Record> records = records_to_load(rank, reads_);
  for (checkpoint::Record& r : computes.records(Computation::Whose::held)) records.push_back(std::move(r));
  const std::set<std::string> frozen = frozen_parameters(rank.store);
  int64_t at = 0;
  for (checkpoint::Record& r : records) {
    const int64_t bytes = r.bytes();
    at = round_up(at, size_of(r.dtype));
    const bool stays = frozen.contains(r.tensor);
    kept_.push_back({std::move(r), at, stays});
    at += bytes;
  }
  constexpr const char* kName = "copies of the state for replaced ranks";
  if (memory.dry()) {
    counted_ = memory.allocate(MemoryKind::host, Category::checkpoint, DType::uint8,
                               {StateCopies::bytes_for(at)}, kName);
  } else {
    copies_->open(at);
    counted_ = memory.count(Category::checkpoint, copies_->bytes(), kName);
  }
}

void StateCopier::begin(int64_t step, std::string text) {
  if (!copies_) return;  // a dry engine
  finish();
  worker_.enqueue([this, step, text = std::move(text)] {
    const StateCopies::Copy to = copies_->begin(step);
    for (const Kept& kept : kept_)
      if (!kept.frozen || !to.again) in_pieces(kept.record, to.state + kept.at, kept.record.read);
    copies_->end(step, text);
  });
}

std::string StateCopier::restore(int64_t step) {
  finish();
  // Writers only read it.
  auto* from = const_cast<std::byte*>(copies_->state_of(step));
  for (const Kept& kept : kept_) in_pieces(kept.record, from + kept.at, kept.record.write);
  return copies_->text_of(step);
}

}  // namespace cleave::runtime
