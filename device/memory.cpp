#include "device/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/units.h"
#include "core/warnings.h"
#include "device/cuda/cuda_memory.h"

namespace cleave {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Small blocks come from the heap. Large blocks are mapped on a huge-page boundary, because alignment and
// huge pages speed up matrix products by up to 2x.
void* map_zeroed(int64_t bytes) {
  if (bytes < kHugePage) {
    void* p = std::aligned_alloc(64, size_t(round_up(std::max<int64_t>(bytes, 1), 64)));
    if (p) std::memset(p, 0, size_t(bytes));
    return p;
  }
  const size_t length = size_t(round_up(bytes, kHugePage));
  void* raw = mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  auto* aligned = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<int64_t>(begin), kHugePage));
  if (aligned > begin) munmap(begin, size_t(aligned - begin));
  if (const size_t tail = size_t(begin + length + kHugePage - (aligned + length)))
    munmap(aligned + length, tail);
  madvise(aligned, length, MADV_HUGEPAGE);  // a hint; fails if huge pages are off
  return aligned;
}

void unmap(void* data, int64_t bytes) {
  if (bytes < kHugePage)
    std::free(data);
  else
    munmap(data, size_t(round_up(bytes, kHugePage)));
}

// Falls back to ordinary memory, with slower copies, if the machine cannot lock so much.
MemoryBlock allocate_pinned(Device device, int64_t bytes) {
  const MemoryBlock pinned = cuda_allocate_pinned(device, bytes);
  if (pinned.data) return pinned;
  static std::once_flag said;
  std::call_once(said, [&] {
    warn(
        "{} of host memory could not be page-locked, so copies to the GPU will be slower, "
        "and the host "
        "waits for each; ulimit -l and the container's memory limit decide",
        format_bytes(bytes));
  });
  return {map_zeroed(bytes), unmap};
}

MemoryBlock allocate_block(Device device, MemoryKind kind, int64_t bytes) {
  if (device.is_cuda() && kind == MemoryKind::device) return cuda_allocate(device, bytes);
  if (device.is_cuda() && kind == MemoryKind::pinned) return allocate_pinned(device, bytes);
  return {map_zeroed(bytes), unmap};
}

constexpr bool moves(MemoryKind kind, Category c) {
  return kind == MemoryKind::device && (c == Category::weights || c == Category::gradients ||
                                        c == Category::buckets || c == Category::gathered);
}

int64_t host_total(const MemoryTable& t) { return t.total(MemoryKind::pinned) + t.total(MemoryKind::host); }

// Advice that shrinks a category for any job. Advice on dividing it over ranks comes from the plan, which
// knows the ranks and the current sharding.
std::string_view remedy(Category category, MemoryKind kind) {
  const bool on_device = kind == MemoryKind::device;
  switch (category) {
    case Category::weights:
      return on_device ? "zero_optimization.offload_param.device \"cpu\" or \"nvme\" moves them away"
                       : "zero_optimization.offload_param.device \"nvme\" moves them to disk";
    case Category::gradients:
      return "data_types.grad_accum_dtype sets their width";
    case Category::master:
    case Category::optimizer_state:
      return on_device
                 ? "zero_optimization.offload_optimizer.device \"cpu\" moves it to host memory, \"nvme\" "
                   "to disk"
                 : "zero_optimization.offload_optimizer.device \"nvme\" moves it to disk";
    case Category::buckets:
      return "zero_optimization.overlap_comm false needs one gradient bucket less";
    case Category::gathered:
      return "zero_optimization.stage3_prefetch_bucket_size 0 gathers one layer at a time";
    case Category::activations:
      return "a smaller train_micro_batch_size_per_gpu (with more gradient_accumulation_steps) or --seq_len";
    case Category::kv_cache:
      return "fewer texts at a time (--batch), or none kept (--no_kv_cache)";
    case Category::staging:
      return "a smaller zero_optimization.reduce_bucket_size and allgather_bucket_size";
    case Category::checkpoint:
      return "checkpoint.async false and cleave.copies_in_memory false keep no copies of the state";
    case Category::layer_state:
      return "layers that declare less state (Layer::states)";
  }
  return "";
}

// "largest: weights (1.2 GiB); <action>".
std::string advice(const MemoryTable& table, MemoryKind kind) {
  Category largest = Category::weights;
  for (int c = 0; c < kCategories; ++c)
    if (table.at(kind, Category(c)) > table.at(kind, largest)) largest = Category(c);
  return fmt::format("largest: {} ({}); {}", name_of(largest), format_bytes(table.at(kind, largest)),
                     remedy(largest, kind));
}

[[noreturn]] void refuse(const MemoryTable& table, MemoryKind kind, int64_t total, int64_t limit,
                         const std::string& what, bool with_table = true) {
  fail(Exit::memory, "{}: {} of {} memory needed, {} allowed\n{}{}", what, format_bytes(total), name_of(kind),
       format_bytes(limit), with_table ? format(table) : "", advice(table, kind));
}

}  // namespace

int64_t MemoryTable::total(MemoryKind k) const {
  int64_t sum = 0;
  for (int64_t b : bytes[size_t(k)]) sum += b;
  return sum;
}

int64_t MemoryTable::total(Category c) const {
  int64_t sum = 0;
  for (const auto& row : bytes) sum += row[size_t(c)];
  return sum;
}

std::string format(const MemoryTable& planned, const MemoryTable* now) {
  std::string out = fmt::format("  {:<16}", "");
  auto used = [&](MemoryKind k) { return planned.total(k) > 0 || (now && now->total(k) > 0); };
  for (int k = 0; k < kMemoryKinds; ++k) {
    if (!used(MemoryKind(k))) continue;
    out += fmt::format("{:>14}", name_of(MemoryKind(k)));
    if (now) out += fmt::format("{:>14}", "now");
  }
  out += '\n';
  auto row = [&](std::string_view name, auto value) {
    out += fmt::format("  {:<16}", name);
    for (int k = 0; k < kMemoryKinds; ++k) {
      if (!used(MemoryKind(k))) continue;
      out += fmt::format("{:>14}", format_bytes(value(planned, MemoryKind(k))));
      if (now) out += fmt::format("{:>14}", format_bytes(value(*now, MemoryKind(k))));
    }
    out += '\n';
  };
  for (int c = 0; c < kCategories; ++c)
    if (planned.total(Category(c)) || (now && now->total(Category(c))))
      row(name_of(Category(c)), [&](const MemoryTable& t, MemoryKind k) { return t.at(k, Category(c)); });
  row("total", [](const MemoryTable& t, MemoryKind k) { return t.total(k); });
  return out;
}

void check_fits(const MemoryTable& planned, const MemoryLimits& limits, bool with_table) {
  if (const int64_t device = planned.total(MemoryKind::device); device > limits.device_bytes)
    refuse(planned, MemoryKind::device, device, limits.device_bytes, "the plan does not fit", with_table);
  if (const int64_t host = host_total(planned); host > limits.host_bytes) {
    const bool pinned = planned.total(MemoryKind::pinned) > planned.total(MemoryKind::host);
    refuse(planned, pinned ? MemoryKind::pinned : MemoryKind::host, host, limits.host_bytes,
           "the plan does not fit", with_table);
  }
}

Buffer Memory::count(Category category, Tensor owned, std::string_view name) {
  add(owned.memory(), category, owned.bytes(), name);
  Buffer buffer;
  buffer.memory_ = this, buffer.tensor_ = owned, buffer.category_ = category, buffer.bytes_ = owned.bytes();
  return buffer;
}

Buffer Memory::allocate(MemoryKind kind, Category category, DType dtype, Shape shape, std::string_view name) {
  const bool moved = moves(kind, category);
  const int64_t bytes = round_up(shape.numel() * size_of(dtype), moved ? moved_.granularity : 1);
  add(kind, category, bytes, name);
  Buffer buffer;
  buffer.memory_ = this, buffer.tensor_ = Tensor(nullptr, dtype, shape, kind), buffer.category_ = category;
  buffer.bytes_ = bytes;
  if (bytes == 0 || kind == MemoryKind::disk) return buffer;
  if (dry()) {
    std::lock_guard lock(mutex_);
    buffer.tensor_ = Tensor(reinterpret_cast<void*>(next_), dtype, shape, kind);
    next_ += round_up(bytes, kHugePage);
    return buffer;
  }
  const bool theirs = moved && moved_.allocate;
  const MemoryBlock block = theirs ? moved_.allocate(device_, bytes) : allocate_block(device_, kind, bytes);
  if (!block.data) {
    buffer = {};
    refused(kind, category, bytes, name);
  }
  buffer.tensor_ = Tensor(block.data, dtype, shape, kind), buffer.release_ = block.release;
  if (theirs) {
    std::lock_guard lock(mutex_);
    moved_now_.push_back(Tensor(block.data, DType::uint8, {bytes}, kind));
  }
  return buffer;
}

void Memory::refused(MemoryKind kind, Category category, int64_t bytes, std::string_view name) {
  const bool gpu = device_.is_cuda() && kind == MemoryKind::device;
  const std::string by =
      gpu ? name_of(device_) : fmt::format("the operating system ({})", std::strerror(errno));
  const MemoryTable now = live(), planned = planned_ == MemoryTable{} ? now : planned_;
  fail(Exit::memory, "out of {} memory: {} ({}) of {} refused by {}\nplanned, and allocated now:\n{}{}",
       name_of(kind), name, name_of(category), format_bytes(bytes), by, format(planned, &now),
       advice(planned, kind));
}

void Memory::add(MemoryKind kind, Category category, int64_t bytes, std::string_view name) {
  std::lock_guard lock(mutex_);
  MemoryTable next = live_;
  next.at(kind, category) += bytes;
  if (!dry()) {
    const bool device = kind == MemoryKind::device;
    const int64_t total = device ? next.total(kind) : host_total(next);
    const int64_t limit = device ? limits_.device_bytes : limits_.host_bytes;
    if (total > limit)
      refuse(next, kind, total, limit, fmt::format("allocating {} for {}", format_bytes(bytes), name));
  }
  live_ = next;
  peak_.at(kind, category) = std::max(peak_.at(kind, category), live_.at(kind, category));
}

void Memory::remove(const Buffer& buffer) {
  std::lock_guard lock(mutex_);
  live_.at(buffer.tensor_.memory(), buffer.category_) -= buffer.bytes_;
  std::erase_if(moved_now_, [&](const Tensor& t) { return t.raw() == buffer.tensor_.raw(); });
}

std::vector<Tensor> Memory::moved() const {
  std::lock_guard lock(mutex_);
  return moved_now_;
}

MemoryTable Memory::live() const {
  std::lock_guard lock(mutex_);
  return live_;
}

MemoryTable Memory::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    memory_ = std::exchange(other.memory_, nullptr);
    tensor_ = std::exchange(other.tensor_, {});
    category_ = other.category_, bytes_ = other.bytes_, release_ = other.release_;
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (!memory_) return;
  memory_->remove(*this);
  if (release_) release_(tensor_.raw(), bytes_);
  memory_ = nullptr, tensor_ = {}, release_ = nullptr;
}

}  // namespace cleave
