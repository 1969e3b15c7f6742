#include "tests/cuda_interpreter/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tests/cuda_interpreter/settings.h"

namespace interpreter {

DeviceMemory& device_memory() {
  static DeviceMemory* memory = new DeviceMemory;  // kernels may run until the process ends
  return *memory;
}

DeviceMemory::DeviceMemory() {
  total_ = size_t(setting("MEMORY_MIB", 8192)) << 20;
  span_ = kSpan;
  file_ = memfd_create("cuda_interpreter", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, off_t(span_)) != 0)
    std::perror("cuda interpreter: memfd_create"), std::abort();
  void* base = mmap(nullptr, span_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (base == MAP_FAILED) std::perror("cuda interpreter: mmap"), std::abort();
  base_ = static_cast<std::byte*>(base);
}

size_t DeviceMemory::used(int device) const {
  std::shared_lock lock(mutex_);
  size_t sum = 0;
  for (const auto& [begin, piece] : pieces_)
    if (piece.device == device && piece.owned) sum += taken(piece.bytes, piece.giver);
  return sum;
}

// Takes the first gap that is large enough, with an unowned page on each side.
void* DeviceMemory::allocate(int device, size_t bytes, Giver giver) {
  if (bytes > total_ || used(device) + taken(bytes, giver) > total_) return nullptr;
  const size_t room = (bytes + kPage - 1) / kPage * kPage + kPage;
  std::byte* at = base_ + kPage;
  std::unique_lock lock(mutex_);
  for (const auto& [begin, piece] : pieces_) {
    if (begin < base_ || begin >= base_ + span_) continue;
    if (begin >= at + room) break;
    at = base_ + (size_t(begin - base_) + piece.bytes + 2 * kPage - 1) / kPage * kPage;
  }
  if (at + room > base_ + span_) return nullptr;
  pieces_[at] = {bytes, "", device, true, std::vector<bool>((bytes + kChunk - 1) / kChunk), giver};
  changes_.fetch_add(1);
  return at;
}

bool DeviceMemory::free(void* p, Giver giver) {
  std::unique_lock lock(mutex_);
  const auto at = pieces_.find(static_cast<std::byte*>(p));
  if (at == pieces_.end() || !at->second.owned || at->second.giver != giver) return false;
  const size_t bytes = (at->second.bytes + kPage - 1) / kPage * kPage;
  if (bytes >= kGivenBack)
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<std::byte*>(p) - base_,
              off_t(bytes));
  pieces_.erase(at);
  changes_.fetch_add(1);
  return true;
}

bool DeviceMemory::zero(void* p, size_t bytes) {
  std::unique_lock lock(mutex_);
  auto* first = static_cast<std::byte*>(p);
  const auto found = piece_at(first);
  if (found == pieces_.end() || !found->second.owned) return false;
  const Piece& piece = found->second;
  const size_t from = size_t(first - found->first), to = from + bytes;
  if (to > piece.bytes) return false;
  const size_t begin = (from + kChunk - 1) / kChunk * kChunk, end = to / kChunk * kChunk;
  if (end < begin + kGivenBack) return fill(found->first, piece, from, to), std::memset(p, 0, bytes), true;
  if (begin > from) fill(found->first, piece, from, begin), std::memset(p, 0, begin - from);
  if (to > end) fill(found->first, piece, end, to), std::memset(first + (end - from), 0, to - end);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first + (begin - from) - base_,
            off_t(end - begin));
  std::fill(piece.filled.begin() + ptrdiff_t(begin / kChunk), piece.filled.begin() + ptrdiff_t(end / kChunk),
            true);
  return true;
}

void DeviceMemory::add(void* p, size_t bytes, const std::string& what, int device) {
  std::unique_lock lock(mutex_);
  pieces_[static_cast<std::byte*>(p)] = {bytes, what, device, false};
  changes_.fetch_add(1);
}

bool DeviceMemory::remove(void* p) {
  std::unique_lock lock(mutex_);
  changes_.fetch_add(1);
  return pieces_.erase(static_cast<std::byte*>(p)) > 0;
}

// Returns the piece that contains this byte.
DeviceMemory::Pieces::const_iterator DeviceMemory::piece_at(const std::byte* p) const {
  auto after = pieces_.upper_bound(p);
  if (after == pieces_.begin()) return pieces_.end();
  --after;
  return size_t(p - after->first) < after->second.bytes ? after : pieces_.end();
}

const DeviceMemory::Piece* DeviceMemory::find(const void* p, std::byte** begin) const {
  std::shared_lock lock(mutex_);
  const auto found = piece_at(static_cast<const std::byte*>(p));
  if (found == pieces_.end()) return nullptr;
  if (begin) *begin = const_cast<std::byte*>(found->first);
  return &found->second;
}

// Fills unfilled chunks of these bytes with the pattern, and returns the range of the chunks.
std::pair<const std::byte*, const std::byte*> DeviceMemory::fill(const std::byte* begin, const Piece& piece,
                                                                 size_t first, size_t last) {
  if (!piece.owned) return {begin, begin + piece.bytes};
  const size_t begins = first / kChunk, ends = (last + kChunk - 1) / kChunk;
  for (size_t chunk = begins; chunk < ends; ++chunk) {
    if (piece.filled[chunk]) continue;
    const size_t from = chunk * kChunk;
    std::memset(const_cast<std::byte*>(begin) + from, 0xff, std::min(kChunk, piece.bytes - from));
    piece.filled[chunk] = true;
  }
  return {begin + begins * kChunk, begin + std::min(ends * kChunk, piece.bytes)};
}

bool DeviceMemory::holds(const void* p, size_t bytes) const {
  struct Known {
    uint64_t changes = 0;
    const std::byte *begin = nullptr, *end = nullptr;
  };
  thread_local Known all[kKnown];  // by page
  Known& known = all[reinterpret_cast<uintptr_t>(p) / kPage % kKnown];
  const auto* first = static_cast<const std::byte*>(p);
  if (known.changes == changes_.load() && first >= known.begin && first + bytes <= known.end) return true;
  std::unique_lock lock(mutex_);
  const auto found = piece_at(first);
  if (found == pieces_.end() || bytes > size_t(found->first + found->second.bytes - first)) return false;
  const size_t from = size_t(first - found->first);
  const auto [begin, end] = fill(found->first, found->second, from, from + bytes);
  known = {changes_.load(), begin, end};
  return true;
}

bool DeviceMemory::on_device(const void* p) const {
  const Piece* piece = find(p, nullptr);
  return piece && piece->device >= 0;
}

std::string DeviceMemory::problem(const void* p, size_t bytes) const {
  if (holds(p, bytes)) return {};
  std::shared_lock lock(mutex_);
  char text[200];
  auto after = pieces_.upper_bound(static_cast<const std::byte*>(p));
  if (after == pieces_.begin()) {
    std::snprintf(text, sizeof text, "%zu bytes at %p, where no GPU reaches anything", bytes, p);
    return text;
  }
  --after;
  const ptrdiff_t from = static_cast<const std::byte*>(p) - after->first;
  std::snprintf(text, sizeof text, "%zu bytes at %p: byte %td of the nearest allocation, which has %zu",
                bytes, p, from, after->second.bytes);
  return text;
}

}  // namespace interpreter
