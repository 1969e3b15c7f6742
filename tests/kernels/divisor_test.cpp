#include "kernels/divisor.h"

#include <gtest/gtest.h>

#include <set>

namespace cleave::kernels {
namespace {

TEST(Divisor, EqualsIntegerDivision) {
  std::set<int64_t> numbers;  // around all powers of two, and small and odd ones
  for (int bit = 0; bit < 31; ++bit)
    for (int64_t near : {-2, -1, 0, 1, 2}) numbers.insert((int64_t{1} << bit) + near);
  for (int64_t n : {3, 5, 7, 12, 25, 96, 100, 641, 1120, 3584, 50257, 151936, 6700417, 2147483629})
    numbers.insert(n);
  for (const int64_t d : numbers) {
    if (d <= 0 || d >= Divisor::kMost) continue;
    const Divisor divisor(d);
    EXPECT_EQ(divisor.value(), d);
    std::set<int64_t> dividends = numbers;  // and numbers around multiples
    for (int64_t times : {int64_t{1}, int64_t{2}, int64_t{1000}, Divisor::kMost / d - 1, Divisor::kMost / d})
      for (int64_t near : {-1, 0, 1}) dividends.insert(times * d + near);
    for (const int64_t n : dividends) {
      if (n < 0 || n >= Divisor::kMost) continue;
      ASSERT_EQ(divisor.quotient(uint32_t(n)), n / d) << n << " / " << d;
      ASSERT_EQ(divisor.rest(uint32_t(n)), n % d) << n << " / " << d;
    }
  }
}

TEST(Divisor, RejectsInvalidDivisors) {
  for (const int64_t d : {int64_t{0}, int64_t{-1}, Divisor::kMost}) EXPECT_THROW(Divisor{d}, Error) << d;
}

}  // namespace
}  // namespace cleave::kernels
