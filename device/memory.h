// Memory that is counted. Every long-lived byte of a rank comes from its Memory, under a category and a
// memory kind, so that a plan can be compared with what really happened, to the byte. A dry Memory counts
// without allocating: running the real allocation code against it is how a plan is made. Its buffers have
// addresses that differ and that nobody may touch.
#pragma once
#include <array>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/memory_block.h"
#include "device/tensor.h"

namespace cleave {

enum class Category : uint8_t {
  weights,
  gradients,
  master,
  optimizer_state,
  buckets,
  gathered,
  activations,
  kv_cache,
  staging,
  checkpoint,
  layer_state
};
inline constexpr int kCategories = 11;

constexpr std::string_view name_of(Category category) {
  constexpr std::string_view names[] = {"weights", "gradients",  "master",      "optimizer_state",
                                        "buckets", "gathered",   "activations", "kv_cache",
                                        "staging", "checkpoint", "layer_state"};
  return names[size_t(category)];
}

// Bytes by memory kind and category; a plain value.
struct MemoryTable {
  std::array<std::array<int64_t, kCategories>, kMemoryKinds> bytes{};

  int64_t& at(MemoryKind k, Category c) { return bytes[size_t(k)][size_t(c)]; }
  int64_t at(MemoryKind k, Category c) const { return bytes[size_t(k)][size_t(c)]; }
  int64_t total(MemoryKind k) const;
  int64_t total(Category c) const;
  bool operator==(const MemoryTable&) const = default;
};

// A table for people: one row a category, one column a kind that is used.
std::string format(const MemoryTable& planned, const MemoryTable* now = nullptr);

struct MemoryLimits {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t device_bytes = kNone;
  int64_t host_bytes = kNone;  // pinned and pageable together
};

// Of device memory in the categories that collectives move (weights, gradients, buckets, gathered): its sizes
// are multiples of this, and a transport may have an allocator of its own for it.
struct MovedMemory {
  int64_t granularity = 1;
  DeviceAllocator allocate = nullptr;  // none: the device's
};

class Buffer;

class Memory {
 public:
  enum class Mode { real, dry };

  // Device memory of a CUDA rank is the GPU's, and its pinned memory is locked; where the machine refuses to
  // lock, it is ordinary memory and a warning goes to stderr once. A dry memory needs no GPU.
  explicit Memory(MemoryLimits limits = {}, Mode mode = Mode::real, Device device = {},
                  MovedMemory moved = {})
      : limits_(limits), mode_(mode), device_(device), moved_(moved) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Zero-filled, 64-byte aligned; from 2 MiB on, 2 MiB aligned and on huge pages where the kernel grants
  // them. Throws Error(memory) with the category table when a limit or the machine refuses. The buffer must
  // not outlive this Memory. `name` appears in messages. Disk memory is only counted, and its tensor has no
  // address: the bytes are in a file (offload/disk_file.h).
  Buffer allocate(MemoryKind kind, Category category, DType dtype, Shape shape, std::string_view name);

  bool dry() const { return mode_ == Mode::dry; }
  Device device() const { return device_; }
  // What now comes from the allocator for moved memory, each piece whole, in the order of allocation.
  std::vector<Tensor> moved() const;
  // What will be allocated, for the report when the machine refuses.
  void expect(const MemoryTable& planned) { planned_ = planned; }
  const MemoryLimits& limits() const { return limits_; }
  MemoryTable live() const;
  MemoryTable peak() const;  // the largest live value of each entry

 private:
  friend class Buffer;
  void add(MemoryKind kind, Category category, int64_t bytes, std::string_view name);
  void remove(const Buffer& buffer);
  [[noreturn]] void refused(MemoryKind kind, Category category, int64_t bytes, std::string_view name);

  MemoryLimits limits_;
  Mode mode_;
  Device device_;
  MovedMemory moved_;
  mutable std::mutex mutex_;
  std::vector<Tensor> moved_now_;
  MemoryTable live_, peak_, planned_;
  intptr_t next_ = kNoMemory;  // of a dry buffer
};

// Throws Error(memory) with the category table and the config keys that shrink the largest category when
// `planned` exceeds `limits`.
void check_fits(const MemoryTable& planned, const MemoryLimits& limits);

// Owns memory; move-only. Converts to a tensor over all of it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  Tensor tensor() const { return tensor_; }
  operator Tensor() const { return tensor_; }
  bool defined() const { return memory_ != nullptr; }

 private:
  friend class Memory;
  void reset() noexcept;

  Memory* memory_ = nullptr;
  Tensor tensor_;
  Category category_{};
  int64_t bytes_ = 0;                                     // that were taken: at least the tensor's
  void (*release_)(void* data, int64_t bytes) = nullptr;  // how the bytes go back; none: there are none
};

}  // namespace cleave
