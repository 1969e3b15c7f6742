// Tensor views. A tensor has an address, type, shape and memory kind, and owns nothing: buffers own, tensors
// view.
#pragma once
#include <array>
#include <initializer_list>
#include <span>

#include "core/range.h"
#include "device/dtype.h"

namespace cleave {

// Location of bytes. On the CPU backend, device, pinned and host are all ordinary memory, but with separate
// counts and limits, so any machine can test an offload plan.
enum class MemoryKind : uint8_t { device, pinned, host, disk };
inline constexpr int kMemoryKinds = 4;

constexpr std::string_view name_of(MemoryKind kind) {
  constexpr std::string_view names[] = {"device", "pinned host", "host", "disk"};
  return names[size_t(kind)];
}

// First address of dry runs. Dry addresses are distinct and comparable, but no processor or GPU maps them.
inline constexpr intptr_t kNoMemory = intptr_t{1} << 60;

// Up to four dims, row major and contiguous.
struct Shape {
  std::array<int64_t, 4> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    CHECK(list.size() <= 4, "a shape has at most 4 dims, got {}", list.size());
    for (int64_t d : list) dims[size_t(rank++)] = d;
  }
  int64_t operator[](int i) const { return dims[size_t(i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[size_t(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape, MemoryKind memory = MemoryKind::device)
      : data_(static_cast<std::byte*>(data)), shape_(shape), dtype_(dtype), memory_(memory) {}

  DType dtype() const { return dtype_; }
  MemoryKind memory() const { return memory_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype_); }
  // False for a default-constructed tensor, which means an omitted operand. In a dry run, tensors are defined
  // without memory.
  bool defined() const { return shape_.rank > 0; }
  void* raw() const { return data_; }
  // False in a dry run, and for an undefined tensor.
  bool has_memory() const { return data_ && intptr_t(data_) < kNoMemory; }

  // Returns the elements as T, which must be the tensor's type. Throws in a dry run, which has no memory.
  // Access elements only in kernels or in stream tasks (Stream::enqueue); a dry stream counts these without
  // running them.
  template <class T>
  T* as() const {
    CHECK(dtype_ == dtype_of<T>(), "tensor is {}, used as {}", name_of(dtype_), name_of(dtype_of<T>()));
    CHECK(
        has_memory() || numel() == 0,
        "a tensor of {} elements without memory was read or written: this is a dry pass, which "
        "only plans memory; touch elements in kernels or in tasks given to Stream::enqueue, which a dry pass "
        "leaves out",
        numel());
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), size_t(numel())};
  }

  // One-dimensional view of elements [r.begin, r.end) in flat order.
  Tensor slice(Range r) const {
    CHECK(0 <= r.begin && r.begin <= r.end && r.end <= numel(), "slice [{}, {}) of {} elements", r.begin,
          r.end, numel());
    return {at(r.begin * size_of(dtype_)), dtype_, {r.size()}, memory_};
  }
  // View of the same elements with another shape.
  Tensor view(Shape shape) const {
    CHECK(shape.numel() == numel(), "view of {} elements as {}", numel(), shape.numel());
    return {data_, dtype_, shape, memory_};
  }
  // Rows [r.begin, r.end) of the first dim.
  Tensor rows(Range r) const {
    CHECK(shape_.rank >= 1 && 0 <= r.begin && r.begin <= r.end && r.end <= dim(0), "rows [{}, {}) of {}",
          r.begin, r.end, shape_.rank ? dim(0) : 0);
    Shape s = shape_;
    s.dims[0] = r.size();
    const int64_t row = dim(0) ? numel() / dim(0) : 0;
    return {at(r.begin * row * size_of(dtype_)), dtype_, s, memory_};
  }

 private:
  // A view of a tensor without an address has no address.
  std::byte* at(int64_t bytes) const { return data_ ? data_ + bytes : nullptr; }

  std::byte* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::fp32;
  MemoryKind memory_ = MemoryKind::device;
};

}  // namespace cleave
