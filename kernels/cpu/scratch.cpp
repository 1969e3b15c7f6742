#include "kernels/cpu/scratch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "core/range.h"

namespace cleave::kernels::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kKeptLimit = int64_t{1} << 29;

struct Block {
  void* data;
  int64_t bytes;
};

struct Kept {
  std::mutex mutex;
  std::vector<Block> blocks;
  int64_t bytes = 0;

  ~Kept() {
    for (Block b : blocks) std::free(b.data);
  }
};

Kept& kept() {
  static Kept instance;
  return instance;
}

// Returns the smallest kept block that fits without wasting more than it uses, or nothing.
Block reuse(int64_t bytes) {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  size_t best = k.blocks.size();
  for (size_t i = 0; i < k.blocks.size(); ++i)
    if (k.blocks[i].bytes >= bytes && k.blocks[i].bytes <= 2 * bytes &&
        (best == k.blocks.size() || k.blocks[i].bytes < k.blocks[best].bytes))
      best = i;
  if (best == k.blocks.size()) return {};
  const Block found = k.blocks[best];
  k.blocks[best] = k.blocks.back();
  k.blocks.pop_back();
  k.bytes -= found.bytes;
  return found;
}

}  // namespace

Scratch::Scratch(int64_t bytes) {
  if (bytes <= 0) return;
  bytes_ = round_up(bytes, bytes < kHugePage ? 4096 : kHugePage);
  const Block old = reuse(bytes_);
  if (old.data) {
    data_ = old.data, bytes_ = old.bytes;
    return;
  }
  data_ = std::aligned_alloc(size_t(bytes_ < kHugePage ? 4096 : kHugePage), size_t(bytes_));
  require(data_ != nullptr, Exit::memory,
          "host memory: {} bytes for the temporary memory of a kernel are not available", bytes_);
  if (bytes_ >= kHugePage) madvise(data_, size_t(bytes_), MADV_HUGEPAGE);
}

Scratch::~Scratch() {
  if (!data_) return;
  Kept& k = kept();
  {
    const std::lock_guard lock(k.mutex);
    if (k.bytes + bytes_ <= kKeptLimit) {
      k.blocks.push_back({data_, bytes_});
      k.bytes += bytes_;
      return;
    }
  }
  std::free(data_);
}

}  // namespace cleave::kernels::cpu
