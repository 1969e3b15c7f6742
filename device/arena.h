// Bump allocator for stack-ordered memory: activations and the scratch of a call. Code that takes tensors
// from an arena first runs against a dry arena, which only measures the required size.
#pragma once
#include "device/memory.h"

namespace cleave {

class Arena {
 public:
  // Dry: returns tensors without memory and measures.
  Arena() = default;
  // Real: divides `bytes` (one-dimensional uint8), which must outlive all taken tensors.
  explicit Arena(Tensor bytes) : base_(static_cast<std::byte*>(bytes.raw())), capacity_(bytes.bytes()) {
    memory_ = bytes.memory();
  }

  // Returns a 64-byte aligned, uninitialized tensor.
  Tensor take(DType dtype, Shape shape) {
    const int64_t begin = used_;
    used_ = round_up(used_ + shape.numel() * size_of(dtype), 64);
    peak_ = std::max(peak_, used_);
    if (!base_) return {nullptr, dtype, shape, memory_};
    CHECK(used_ <= capacity_, "arena of {} bytes asked for {}", capacity_, used_);
    return {base_ + begin, dtype, shape, memory_};
  }

  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }
  int64_t peak_bytes() const { return peak_; }

 private:
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0, used_ = 0, peak_ = 0;
  MemoryKind memory_ = MemoryKind::device;
};

}  // namespace cleave
