// Division of numbers below 2^31 by a launch constant, as a multiplication (Granlund and Montgomery, PLDI
// 1994), because an integer division takes dozens of GPU instructions.
#pragma once
#include <cstdint>

#include "core/error.h"

namespace cleave::kernels {

class Divisor {
 public:
  static constexpr int64_t kMost = int64_t{1} << 31;  // both numbers must be below

  // Throws Error(internal) if the divisor is outside 1 .. kMost - 1.
  explicit Divisor(int64_t divisor) : value_(uint32_t(divisor)) {
    CHECK(divisor > 0 && divisor < kMost, "nothing is divided by {} on a GPU", divisor);
    while ((uint64_t{1} << shift_) < value_) ++shift_;
    factor_ = uint32_t((((uint64_t{1} << shift_) - value_) << 32) / value_ + 1);
  }

  constexpr uint32_t value() const { return value_; }
  constexpr uint32_t quotient(uint32_t n) const {
    return (uint32_t(uint64_t(n) * factor_ >> 32) + n) >> shift_;
  }
  constexpr uint32_t rest(uint32_t n) const { return n - quotient(n) * value_; }

 private:
  uint32_t value_, factor_ = 0, shift_ = 0;
};

}  // namespace cleave::kernels
