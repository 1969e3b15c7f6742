// Counted memory. Every long-lived byte of a rank comes from its Memory, with a category and a memory kind,
// so a plan matches the actual use to the byte. A dry Memory counts without allocating; plans run the real
// allocation code against it. Its buffers have distinct addresses that must not be accessed.
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

// Formats a table with one row per category and one column per used kind.
std::string format(const MemoryTable& planned, const MemoryTable* now = nullptr);

struct MemoryLimits {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t device_bytes = kNone;
  int64_t host_bytes = kNone;  // pinned and pageable together
};

// Allocator of device memory in the categories that collectives move (weights, gradients, buckets, gathered).
// Sizes are multiples of `granularity`; a transport may supply `allocate`.
struct MovedMemory {
  int64_t granularity = 1;
  DeviceAllocator allocate = nullptr;  // null: the device's allocator
};

class Buffer;

class Memory {
 public:
  enum class Mode { real, dry };

  // For a CUDA device, device memory is on the GPU and pinned memory is page-locked. If the machine cannot
  // lock it, ordinary memory is used, with one warning on stderr. A dry memory needs no GPU.
  explicit Memory(MemoryLimits limits = {}, Mode mode = Mode::real, Device device = {},
                  MovedMemory moved = {})
      : limits_(limits), mode_(mode), device_(device), moved_(moved) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns zero-filled memory, 64-byte aligned; from 2 MiB on it is 2 MiB aligned and uses huge pages if the
  // kernel grants them. Throws Error(memory) with the category table if a limit or the machine is exceeded.
  // The buffer must not outlive this Memory. Messages contain `name`. Disk memory is only counted; its tensor
  // has no address, because the bytes are in a file (offload/disk_file.h).
  Buffer allocate(MemoryKind kind, Category category, DType dtype, Shape shape, std::string_view name);
  // Counts memory that the caller owns, such as shared memory, for the lifetime of the buffer.
  Buffer count(Category category, Tensor owned, std::string_view name);

  bool dry() const { return mode_ == Mode::dry; }
  Device device() const { return device_; }
  // Live blocks of the allocator for moved memory, each as a whole, in allocation order.
  std::vector<Tensor> moved() const;
  // Sets the planned use, for the report of a failed allocation.
  void expect(const MemoryTable& planned) { planned_ = planned; }
  const MemoryLimits& limits() const { return limits_; }
  MemoryTable live() const;
  MemoryTable peak() const;  // maximum of each entry over time

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
  intptr_t next_ = kNoMemory;  // next address of a dry buffer
};

// Throws Error(memory) if `planned` exceeds `limits`, with the category table (unless it is printed already)
// and the config keys that shrink the largest category.
void check_fits(const MemoryTable& planned, const MemoryLimits& limits, bool with_table = true);

// Owns memory; move-only. Converts to a tensor of all elements.
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
  int64_t bytes_ = 0;                                     // allocated bytes: at least those of the tensor
  void (*release_)(void* data, int64_t bytes) = nullptr;  // frees the bytes; null: nothing to free
};

}  // namespace cleave
