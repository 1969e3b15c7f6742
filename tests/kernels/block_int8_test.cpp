#include "kernels/block_int8.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(ToBlockInt8);
KERNEL_SUITE(FromBlockInt8);

constexpr DType kFloats[] = {DType::fp32, DType::bf16, DType::fp16};

struct Case {
  int64_t numel, block;
};
constexpr Case kCases[] = {{0, 8}, {1, 8},      {7, 8},        {8, 8},     {9, 8},
                           {5, 1}, {1000, 256}, {100003, 256}, {257, 1000}};

int code_of(const Guarded& codes, size_t i) {
  const int byte = int(codes.at(i));
  return byte < 128 ? byte : byte - 256;
}

struct Encoded {
  Encoded(const Case& c, const Guarded& x)
      : codes(DType::uint8, {c.numel}), scales(DType::fp32, {ceil_div(c.numel, c.block)}) {
    TestStream stream;
    launch(ToBlockInt8{.codes = codes, .scales = scales, .x = x, .block = c.block}, stream);
  }
  Guarded codes, scales;
};

TEST_P(ToBlockInt8Kernel, ReturnsTheNearestMultiplesOfTheLargestOver127) {
  for (const DType type : kFloats)
    for (const Case& c : kCases) {
      Guarded x(type, {c.numel}, random_values(c.numel, 3));
      const Encoded got(c, x);
      for (int64_t begin = 0; begin < c.numel; begin += c.block) {
        double largest = 0;
        const int64_t end = std::min(c.numel, begin + c.block);
        for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(x.at(size_t(i))));
        const double scale = got.scales.at(size_t(begin / c.block));
        ASSERT_NEAR(scale * 127, largest, largest * 0x1p-23) << name_of(type) << " block at " << begin;
        for (int64_t i = begin; i < end; ++i) {
          const double quotient = x.at(size_t(i)) / scale;  // rounded to fp32 it may reach the next tie
          ASSERT_LE(std::fabs(quotient - code_of(got.codes, size_t(i))), 0.5 + 1e-5)
              << name_of(type) << " at " << i;
        }
      }
    }
}

TEST_P(ToBlockInt8Kernel, BreaksTiesToEvenAndReachesBothEnds) {
  Guarded x(DType::fp32, {6}, {127, 0.5, 1.5, -2.5, -127, -126.5});
  const Encoded got({6, 6}, x);
  const int want[] = {127, 0, 2, -2, -127, -126};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(code_of(got.codes, i), want[i]) << i;
}

TEST_P(ToBlockInt8Kernel, KeepsNonFiniteValuesInTheirBlock) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double broken : {inf, -inf, double(std::nanf(""))})
    for (const size_t place : {size_t{64}, size_t{100}, size_t{127}}) {
      Values v(192, 1);
      v[place] = broken;
      Guarded x(DType::fp32, {192}, v), y(DType::fp32, {192});
      const Encoded got({192, 64}, x);
      TestStream stream;
      launch(FromBlockInt8{.y = y, .codes = got.codes, .scales = got.scales, .block = 64}, stream);
      for (size_t i = 0; i < 192; ++i) ASSERT_EQ(std::isnan(y.at(i)), i / 64 == 1) << i;
    }
}

TEST_P(ToBlockInt8Kernel, EncodesZerosAndTheSmallestNumbers) {
  Guarded zeros(DType::fp32, {64}, Values(64, 0));
  const Encoded none({64, 64}, zeros);
  EXPECT_EQ(none.scales.at(0), 0);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(code_of(none.codes, i), 0);
  Guarded small(DType::fp32, {2},
                {0x1p-149 * 190, -0x1p-149 * 190});  // its scale is 1.496 times the smallest number
  const Encoded ends({2, 2}, small);
  EXPECT_EQ(ends.scales.at(0), 0x1p-149);
  EXPECT_EQ(code_of(ends.codes, 0), 127);
  EXPECT_EQ(code_of(ends.codes, 1), -127);
}

TEST_P(FromBlockInt8Kernel, IsWithinHalfAScaleOfTheOriginal) {
  for (const DType type : kFloats)
    for (const Case& c : kCases) {
      Guarded x(type, {c.numel}, random_values(c.numel, 5)), y(type, {c.numel});
      const Encoded form(c, x);
      TestStream stream;
      launch(FromBlockInt8{.y = y, .codes = form.codes, .scales = form.scales, .block = c.block}, stream);
      for (size_t i = 0; i < size_t(c.numel); ++i) {
        const double scale = form.scales.at(i / size_t(c.block)), product = code_of(form.codes, i) * scale;
        const double bound =
            half_ulp(type) * std::fabs(product) * (1 + 0x1p-20) + 0x1p-25 * (type == DType::fp16);
        ASSERT_NEAR(y.at(i), product, bound) << name_of(type) << " at " << i;
        ASSERT_LE(std::fabs(y.at(i) - x.at(i)), scale / 2 * (1 + 1e-4) + bound)
            << name_of(type) << " at " << i;
      }
    }
}

TEST(BlockInt8, NeedsAScaleForEveryBlock) {
  Stream stream;
  Guarded x(DType::fp32, {9}), codes(DType::uint8, {9}), scales(DType::fp32, {1});
  EXPECT_THROW(launch(ToBlockInt8{.codes = codes, .scales = scales, .x = x, .block = 8}, stream), Error);
  EXPECT_THROW(launch(FromBlockInt8{.y = x, .codes = codes, .scales = scales, .block = 0}, stream), Error);
}

}  // namespace
}  // namespace cleave::kernels
