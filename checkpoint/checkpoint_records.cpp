// Maps records to pieces of shard files and reads them.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "checkpoint/read_ahead.h"
#include "core/printable.h"

namespace cleave::checkpoint {
namespace {

constexpr int64_t kWindow = int64_t{1} << 20;  // elements written to a record at a time

}  // namespace

// Elements [window) of a record, and whole stored blocks that contain some of them.
struct CheckpointReader::Fetch {
  const Record* record;
  Range window;
  const Part* part;
  Range stored;
};

void CheckpointReader::require_stored(const Record& record) const {
  const auto at = manifest_.tensors.find({record.kind, record.tensor});
  require(at != manifest_.tensors.end(), Exit::checkpoint,
          "{}: {} of {} is missing; another model or optimizer wrote this checkpoint, or the parameter was "
          "frozen; --reset_optimizer loads the weights only",
          path_.string(), record.kind, record.tensor);
  require(at->second.shape == record.shape, Exit::checkpoint,
          "{}: {} of {} has the wrong shape (got [{}], expected [{}])", path_.string(), record.kind,
          record.tensor, fmt::join(at->second.shape, ", "), fmt::join(record.shape, ", "));
  require(at->second.dtype == record.dtype, Exit::checkpoint,
          "{}: {} of {} has the wrong type (got {}, expected {})", path_.string(), record.kind, record.tensor,
          name_of(at->second.dtype), name_of(record.dtype));
}

void CheckpointReader::plan(const Record& record, std::vector<Fetch>& fetches) const {
  const Manifest::Whole& whole = manifest_.tensors.at({record.kind, record.tensor});
  const int64_t wanted = record.elements.numel();
  for (Range window{0, 0}; window.begin < wanted; window.begin = window.end) {
    window.end = window_end(record, window.begin, whole);
    for (const Part& part : whole.parts) plan(record, window, part, fetches);
  }
}

// End of a window that begins at `begin`: at most kWindow elements, rounded down to a block's end so that no
// block is read for two windows.
int64_t CheckpointReader::window_end(const Record& record, int64_t begin,
                                     const Manifest::Whole& whole) const {
  const int64_t wanted = record.elements.numel();
  int64_t end = std::min(wanted, begin + kWindow), behind = 0;
  if (end == wanted || manifest_.block == 0) return end;
  for (const Part& part : whole.parts)
    each_overlap(record.elements, {end - 1, end}, part.elements,
                 [&](int64_t, int64_t in_part, int64_t) { behind = (in_part + 1) % manifest_.block; });
  return behind < end - begin ? end - behind : end;
}

void CheckpointReader::plan(const Record& record, Range window, const Part& part,
                            std::vector<Fetch>& fetches) const {
  Range span{part.elements.numel(), 0};  // of the stored elements
  each_overlap(record.elements, window, part.elements, [&](int64_t, int64_t from, int64_t n) {
    span = {std::min(span.begin, from), std::max(span.end, from + n)};
  });
  if (span.empty()) return;
  require_held({record.kind, record.tensor}, part);
  const int64_t block = manifest_.block;
  if (block) span = {span.begin / block * block, std::min(round_up(span.end, block), part.elements.numel())};
  const int64_t most = block ? round_up(kWindow, block) + block : kWindow;
  for (Range piece{span.begin, 0}; piece.begin < span.end; piece.begin = piece.end) {
    piece.end = std::min(span.end, piece.begin + most);
    fetches.push_back({&record, window, &part, piece});
  }
}

void CheckpointReader::read(const Record& record) const { read({&record, 1}, ReadAhead::Reader::caller); }

void CheckpointReader::read(std::span<const Record> records) const {
  read(records, ReadAhead::Reader::thread);
}

void CheckpointReader::read(std::span<const Record> records, ReadAhead::Reader reader) const {
  for (const Record& r : records) require_stored(r);
  try {
    read_planned(records, reader);
  } catch (const Error& e) {
    if (e.exit() != Exit::checkpoint) throw;
    fail(Exit::checkpoint, "{}{}", printable(e.what()), others());
  }
}

void CheckpointReader::read_planned(std::span<const Record> records, ReadAhead::Reader reader) const {
  std::vector<Fetch> fetches;
  for (const Record& r : records) plan(r, fetches);
  std::vector<FilePiece> pieces;
  for (const Fetch& f : fetches) {
    const SafetensorsFile& shard = file(f.part->file);
    const std::string name = name_in_shard({f.record->kind, f.record->tensor}, f.part->elements);
    const int64_t each = size_of(f.record->dtype);
    pieces.push_back({&shard.file(), shard.offset(name) + f.stored.begin * each, f.stored.size() * each});
  }
  ReadAhead ahead(std::move(pieces), reader);
  std::vector<std::byte> memory;
  for (auto first = fetches.begin(), last = first; first != fetches.end(); first = last) {
    last = std::find_if(first, fetches.end(), [&](const Fetch& f) {
      return f.record != first->record || f.window.begin != first->window.begin;
    });
    fill({first, last}, ahead, memory);
  }
}

// Writes one window of a record from the fetched pieces.
void CheckpointReader::fill(std::span<const Fetch> fetches, ReadAhead& ahead,
                            std::vector<std::byte>& memory) const {
  const Record* record = fetches.front().record;
  const Range window = fetches.front().window;
  const int64_t each = size_of(record->dtype);
  std::byte* whole = nullptr;  // the window, if one piece contains it contiguously
  int64_t filled = 0;
  for (const Fetch& f : fetches) {
    const std::span<std::byte> held = ahead.next();
    const Manifest::Name tensor{record->kind, record->tensor};
    manifest_.block ? check(tensor, *f.part, f.stored.begin, held) : check_once(tensor, *f.part);
    each_overlap(record->elements, window, f.part->elements, [&](int64_t to, int64_t from, int64_t n) {
      const Range both = intersect(f.stored, {from, from + n});
      if (both.empty()) return;
      std::byte* source = held.data() + (both.begin - f.stored.begin) * each;
      filled += both.size();
      if (both.size() == window.size()) {
        whole = source;
        return;
      }
      memory.resize(std::max(memory.size(), size_t(kWindow * each)));
      std::memcpy(memory.data() + (to - window.begin + both.begin - from) * each, source,
                  size_t(both.size() * each));
    });
  }
  require(filled == window.size(), Exit::checkpoint, "{}: incomplete (got {} of {} elements of {} {})",
          path_.string(), filled, window.size(), record->kind, record->tensor);
  record->write(window,
                Tensor(whole ? whole : memory.data(), record->dtype, {window.size()}, MemoryKind::host));
}

}  // namespace cleave::checkpoint
