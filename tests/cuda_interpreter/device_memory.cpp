#include "tests/cuda_interpreter/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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
    if (piece.device == device && piece.owned) sum += piece.bytes;
  return sum;
}

// The first gap that is large enough, with a page on either side that belongs to nobody.
void* DeviceMemory::allocate(int device, size_t bytes) {
  if (bytes > total_ || used(device) + bytes > total_) return nullptr;
  const size_t room = (bytes + kPage - 1) / kPage * kPage + kPage;
  std::byte* at = base_ + kPage;
  {
    std::unique_lock lock(mutex_);
    for (const auto& [begin, piece] : pieces_) {
      if (begin < base_ || begin >= base_ + span_) continue;
      if (begin >= at + room) break;
      at = base_ + (size_t(begin - base_) + piece.bytes + 2 * kPage - 1) / kPage * kPage;
    }
    if (at + room > base_ + span_) return nullptr;
    pieces_[at] = {bytes, "", device, true};
    changes_.fetch_add(1);
  }
  std::memset(at, 0xff, bytes);
  return at;
}

bool DeviceMemory::free(void* p) {
  std::unique_lock lock(mutex_);
  const auto at = pieces_.find(static_cast<std::byte*>(p));
  if (at == pieces_.end() || !at->second.owned) return false;
  const size_t bytes = (at->second.bytes + kPage - 1) / kPage * kPage;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<std::byte*>(p) - base_,
            off_t(bytes));
  pieces_.erase(at);
  changes_.fetch_add(1);
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

const DeviceMemory::Piece* DeviceMemory::find(const void* p, std::byte** begin) const {
  std::shared_lock lock(mutex_);
  auto after = pieces_.upper_bound(static_cast<const std::byte*>(p));
  if (after == pieces_.begin()) return nullptr;
  --after;
  if (static_cast<const std::byte*>(p) >= after->first + after->second.bytes) return nullptr;
  if (begin) *begin = const_cast<std::byte*>(after->first);
  return &after->second;
}

bool DeviceMemory::holds(const void* p, size_t bytes) const {
  thread_local uint64_t changes = 0;
  thread_local const std::byte *begin = nullptr, *end = nullptr;
  const auto* first = static_cast<const std::byte*>(p);
  const uint64_t now = changes_.load();
  if (changes != now || first < begin || first + bytes > end) {
    std::byte* start = nullptr;
    const Piece* piece = find(p, &start);
    if (!piece) return false;
    changes = now, begin = start, end = start + piece->bytes;
  }
  return first + bytes <= end;
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
