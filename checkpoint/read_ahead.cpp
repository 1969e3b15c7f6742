#include "checkpoint/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "checkpoint/direct_io.h"

namespace cleave::checkpoint {
namespace {

constexpr int64_t kJoined = int64_t{4} << 20;  // maximum bytes of joined pieces

}  // namespace

// Second descriptor of a file, which bypasses the page cache.
class ReadAhead::Direct {
 public:
  explicit Direct(const InputFile& file)
      : file_(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_ >= 0 && !bypass_page_cache(file_)) ::close(std::exchange(file_, -1));
  }
  ~Direct() {
    if (file_ >= 0) ::close(file_);
  }
  // Reads bytes [offset, offset + bytes) of the file to `to`, which is aligned; they start at to + offset %
  // kDirectAlignment. Returns false if this fails.
  bool read(int64_t offset, int64_t bytes, std::byte* to) const {
    const int64_t before = offset % kDirectAlignment;
    const int64_t all = round_up(before + bytes, kDirectAlignment);
    return file_ >= 0 && ::pread(file_, to, size_t(all), offset - before) >= before + bytes;
  }

 private:
  int file_;
};

// Joins pieces to reads of at most `most` bytes; a larger piece is one read.
std::vector<ReadAhead::Read> ReadAhead::joined(const std::vector<FilePiece>& pieces, int64_t most) {
  std::vector<Read> reads;
  for (const FilePiece& p : pieces) {
    FilePiece* last = reads.empty() ? nullptr : &reads.back().all;
    if (last && last->file == p.file && last->offset + last->bytes == p.offset &&
        last->bytes + p.bytes <= most)
      last->bytes += p.bytes, ++reads.back().pieces;
    else
      reads.push_back({p, 1});
  }
  return reads;
}

ReadAhead::ReadAhead(std::vector<FilePiece> pieces, Reader reader)
    : pieces_(std::move(pieces)),
      reads_(joined(pieces_, reader == Reader::thread ? kJoined : 0)),
      slots_(reader == Reader::thread ? 3 : 1),
      reader_(reader == Reader::thread ? Stream::Mode::worker : Stream::Mode::inline_) {
  int64_t most = 0;
  for (const Read& r : reads_) {
    most = std::max(most, r.all.bytes);
    if (reader == Reader::thread && !direct_.contains(r.all.file))
      direct_.emplace(r.all.file, std::make_unique<Direct>(*r.all.file));
  }
  for (Slot& slot : slots_)
    slot.memory = memory_.allocate(MemoryKind::host, Category::staging, DType::uint8,
                                   {most + 3 * kDirectAlignment}, "bytes of files");
}

ReadAhead::~ReadAhead() = default;

void ReadAhead::begin(size_t read) {
  Slot& slot = slots_[read % slots_.size()];
  reader_.enqueue([this, &slot, &all = reads_[read].all] {
    const auto address = reinterpret_cast<intptr_t>(slot.memory.tensor().raw());
    auto* const to = reinterpret_cast<std::byte*>(round_up(address, kDirectAlignment));
    const auto direct = direct_.find(all.file);
    const bool is_read = direct != direct_.end() && all.offset % int64_t(alignof(double)) == 0 &&
                         direct->second->read(all.offset, all.bytes, to);
    slot.bytes = to + (is_read ? all.offset % kDirectAlignment : 0);
    if (is_read) return;
    try {
      all.file->read(all.offset, {slot.bytes, size_t(all.bytes)});
    } catch (...) {
      failed_ = true;
      throw;
    }
  });
  slot.read = reader_.record();
}

std::span<std::byte> ReadAhead::next() {
  const FilePiece& piece = pieces_[next_++];
  if (left_ == 0) {
    while (begun_ < std::min(reads_.size(), taken_ + slots_.size())) begin(begun_++);
    slots_[taken_ % slots_.size()].read.wait();
    left_ = reads_[taken_++].pieces;
  }
  if (failed_) reader_.synchronize();
  --left_;
  const size_t read = taken_ - 1;
  return {slots_[read % slots_.size()].bytes + (piece.offset - reads_[read].all.offset), size_t(piece.bytes)};
}

}  // namespace cleave::checkpoint
