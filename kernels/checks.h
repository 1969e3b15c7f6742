// Building blocks of the ops' check() functions. An invalid operand is a bug of the caller, so these throw
// Error(internal) with op, operand, expected and actual value.
#pragma once
#include <string>

#include "device/tensor.h"

namespace cleave::kernels {

inline std::string text_of(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank; ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

// Checks a soft cap; 0: none.
inline void check_cap(const char* op, float cap) {
  CHECK(cap >= 0, "{}: a soft cap of {}; it must be above 0, or 0 for none", op, cap);
}

inline bool trains(DType t) { return t == DType::fp32 || t == DType::bf16 || t == DType::fp16; }

// A named operand of a named op, with chained checks: operand("Add", "y", y).is_float().has(shape).
class Operand {
 public:
  Operand(const char* op, const char* name, const Tensor& tensor) : op_(op), name_(name), tensor_(tensor) {
    CHECK(tensor.defined() || tensor.numel() == 0, "{}: {} is undefined", op, name);
  }
  const Operand& is_float() const {
    CHECK(trains(tensor_.dtype()), "{}: {} must be fp32, bf16 or fp16, got {}", op_, name_,
          name_of(tensor_.dtype()));
    return *this;
  }
  const Operand& is(DType type) const {
    CHECK(tensor_.dtype() == type, "{}: {} must be {}, got {}", op_, name_, name_of(type),
          name_of(tensor_.dtype()));
    return *this;
  }
  const Operand& has(const Shape& shape) const {
    CHECK(tensor_.shape() == shape, "{}: {} must be {}, got {}", op_, name_, text_of(shape),
          text_of(tensor_.shape()));
    return *this;
  }
  const Operand& rank(int rank) const {
    CHECK(tensor_.shape().rank == rank, "{}: {} must have {} dims, got {}", op_, name_, rank,
          text_of(tensor_.shape()));
    return *this;
  }
  const Operand& numel(int64_t numel) const {
    CHECK(tensor_.numel() == numel, "{}: {} must have {} elements, got {}", op_, name_, numel,
          text_of(tensor_.shape()));
    return *this;
  }
  // Checks that the tensors share no byte.
  const Operand& no_overlap_with(const char* other_name, const Tensor& other) const {
    const auto* a = static_cast<const std::byte*>(tensor_.raw());
    const auto* b = static_cast<const std::byte*>(other.raw());
    CHECK(!a || !b || a + tensor_.bytes() <= b || b + other.bytes() <= a, "{}: {} must not overlap {}", op_,
          name_, other_name);
    return *this;
  }

 private:
  const char *op_, *name_;
  const Tensor& tensor_;
};

}  // namespace cleave::kernels
