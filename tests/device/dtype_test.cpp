#include "device/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cleave {
namespace {

template <class T>
void expect_round_trip() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const T x{uint16_t(bits)};
    const float value = to_float(x);
    const T back = from_float<T>(value);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(to_float(back))) << bits;
    else
      ASSERT_EQ(back.bits, x.bits);
  }
}

TEST(DType, SixteenBitFloatsRoundTripThroughFloat) {
  expect_round_trip<bf16>();
  expect_round_trip<fp16>();
}

// Between two neighbors: rounds to the nearer one, and ties to the even one.
template <class T>
void expect_nearest(uint32_t largest) {
  for (uint32_t bits = 0; bits < largest; ++bits) {
    const double low = to_float(T{uint16_t(bits)}), high = to_float(T{uint16_t(bits + 1)});
    const float middle = float((low + high) / 2);
    ASSERT_EQ(from_float<T>(middle).bits, bits % 2 ? bits + 1 : bits);
    ASSERT_EQ(from_float<T>(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(from_float<T>(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1);
    ASSERT_EQ(from_float<T>(-middle).bits, (bits % 2 ? bits + 1 : bits) | 0x8000);
  }
}

TEST(DType, ConversionRoundsToNearestEven) {
  expect_nearest<bf16>(0x7f7f);
  expect_nearest<fp16>(0x7bff);
}

TEST(DType, OverflowBecomesInfinityAndNaNStaysNaN) {
  EXPECT_EQ(from_float<fp16>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(from_float<fp16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<bf16>(3.4e38f).bits, 0x7f80);
  // A NaN with all payload bits in the dropped part.
  EXPECT_TRUE(std::isnan(to_float(from_float<bf16>(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(from_float<fp16>(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, HasSizesAndNames) {
  EXPECT_EQ(size_of(DType::fp32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::fp64), 8);
  EXPECT_EQ(size_of(DType::uint8), 1);
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(name_of(DType::uint8), "uint8");
  EXPECT_TRUE(is_float(DType::fp16));
  EXPECT_FALSE(is_float(DType::int64));
  EXPECT_EQ(with_float(DType::bf16, [](auto x) { return dtype_of<decltype(x)>(); }), DType::bf16);
  EXPECT_THROW(with_float(DType::int32, [](auto) { return 0; }), Error);
}

}  // namespace
}  // namespace cleave
