#include "device/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/units.h"

namespace cleave {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Small blocks come from the heap; large ones are mapped on a huge-page boundary, because alignment and huge
// pages are worth up to a factor of two in matrix products.
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
  madvise(aligned, length, MADV_HUGEPAGE);  // a hint; refused where huge pages are off
  return aligned;
}

void unmap(void* data, int64_t bytes) {
  if (bytes < kHugePage)
    std::free(data);
  else
    munmap(data, size_t(round_up(bytes, kHugePage)));
}

int64_t host_total(const MemoryTable& t) { return t.total(MemoryKind::pinned) + t.total(MemoryKind::host); }

std::string_view remedy(Category category) {
  switch (category) {
    case Category::weights:
      return "zero_optimization.stage 3 shards the weights over the ranks";
    case Category::gradients:
      return "zero_optimization.stage 2 shards the gradients; data_types.grad_accum_dtype sets their width";
    case Category::master:
    case Category::optimizer_state:
      return "zero_optimization.stage 1 or higher shards it; zero_optimization.offload_optimizer.device "
             "\"cpu\" moves "
             "it to host memory";
    case Category::buckets:
      return "zero_optimization.overlap_comm false needs one gradient bucket less";
    case Category::gathered:
      return "zero_optimization.stage3_prefetch_bucket_size 0 gathers one layer at a time";
    case Category::activations:
      return "a smaller train_micro_batch_size_per_gpu (with more gradient_accumulation_steps) or --seq_len";
    case Category::staging:
      return "a smaller zero_optimization.reduce_bucket_size and allgather_bucket_size";
  }
  return "";
}

[[noreturn]] void refuse(const MemoryTable& table, MemoryKind kind, int64_t total, int64_t limit,
                         const std::string& what) {
  Category largest = Category::weights;
  for (int c = 0; c < kCategories; ++c)
    if (table.at(kind, Category(c)) > table.at(kind, largest)) largest = Category(c);
  fail(Exit::memory, "{}: {} of {} memory needed, {} allowed\n{}largest: {} ({}); {}", what,
       format_bytes(total), name_of(kind), format_bytes(limit), format(table), name_of(largest),
       format_bytes(table.at(kind, largest)), remedy(largest));
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

void check_fits(const MemoryTable& planned, const MemoryLimits& limits) {
  if (const int64_t device = planned.total(MemoryKind::device); device > limits.device_bytes)
    refuse(planned, MemoryKind::device, device, limits.device_bytes, "the plan does not fit");
  if (const int64_t host = host_total(planned); host > limits.host_bytes) {
    const bool pinned = planned.total(MemoryKind::pinned) > planned.total(MemoryKind::host);
    refuse(planned, pinned ? MemoryKind::pinned : MemoryKind::host, host, limits.host_bytes,
           "the plan does not fit");
  }
}

Buffer Memory::allocate(MemoryKind kind, Category category, DType dtype, Shape shape, std::string_view name) {
  CHECK(kind != MemoryKind::disk, "{}: disk memory is not addressable", name);
  const int64_t bytes = shape.numel() * size_of(dtype);
  add(kind, category, bytes, name);
  void* data = nullptr;
  if (!dry() && bytes > 0) {
    data = map_zeroed(bytes);
    if (!data) {
      remove(kind, category, bytes);
      fail(Exit::memory, "out of {} memory: {} ({}) of {} refused by the operating system ({})\n{}",
           name_of(kind), name, name_of(category), format_bytes(bytes), std::strerror(errno), format(live()));
    }
  }
  Buffer buffer;
  buffer.memory_ = this, buffer.tensor_ = Tensor(data, dtype, shape, kind), buffer.category_ = category;
  return buffer;
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

void Memory::remove(MemoryKind kind, Category category, int64_t bytes) {
  std::lock_guard lock(mutex_);
  live_.at(kind, category) -= bytes;
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
    category_ = other.category_;
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (!memory_) return;
  if (tensor_.raw()) unmap(tensor_.raw(), tensor_.bytes());
  memory_->remove(tensor_.memory(), category_, tensor_.bytes());
  memory_ = nullptr, tensor_ = {};
}

}  // namespace cleave
