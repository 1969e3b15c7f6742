#include "kernels/exact.h"

#include <algorithm>
#include <limits>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(RoundToGrid);
KERNEL_SUITE(FromGrid);
KERNEL_SUITE(AddIntegers);
KERNEL_SUITE(SumIntegerSquares);

Guarded integers(const Values& values) { return Guarded(DType::int64, {int64_t(values.size())}, values); }

std::vector<int64_t> bits_of(const Guarded& x) {
  const std::vector<std::byte> bytes = x.bits();
  std::vector<int64_t> out(bytes.size() / 8);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST_P(RoundToGridKernel, ReturnsTheNearestMultipleAndAccumulates) {
  for (int64_t numel : {0, 1, 13, 100003}) {
    const Values v = random_values(numel, 1);
    for (bool accumulate : {false, true}) {
      Guarded x(DType::fp32, {numel}, v), y = integers(Values(size_t(numel), 5)), bad = integers({0});
      Values want;
      for (size_t i = 0; i < v.size(); ++i)
        want.push_back(std::nearbyint(x.at(i) * 0x1p40) + (accumulate ? 5 : 0));
      TestStream stream;
      launch(RoundToGrid{.y = y, .bad = bad, .x = x, .factor = 0x1p40, .accumulate = accumulate}, stream);
      expect_near(y, want, 0, 0, "y");
      expect_near(bad, {0}, 0, 0, "bad");
    }
  }
}

TEST_P(RoundToGridKernel, BreaksTiesToEven) {
  Guarded x(DType::fp32, {5}, {0.5, 1.5, 2.5, -0.5, -1.5}), y = integers(Values(5, 0)), bad = integers({0});
  TestStream stream;
  launch(RoundToGrid{.y = y, .bad = bad, .x = x}, stream);
  expect_near(y, {0, 2, 2, 0, -2}, 0, 0, "y");
}

TEST_P(RoundToGridKernel, FlagsTooLargeAndNonFiniteValuesAndAddsNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  for (double broken : {inf, -inf, std::nan(""), 1025.0, -3e38})
    for (size_t place : {size_t{0}, size_t{777}, size_t{999}}) {
      Values v(1000, 1024), want(1000, 1031);
      v[place] = broken, want[place] = 7;
      Guarded x(DType::fp32, {1000}, v), y = integers(Values(1000, 7)), bad = integers({0});
      TestStream stream;
      launch(RoundToGrid{.y = y, .bad = bad, .x = x, .limit = 1024, .accumulate = true}, stream);
      expect_near(y, want, 0, 0, "y");
      expect_near(bad, {1}, 0, 0, "bad");
    }
}

TEST_P(FromGridKernel, RoundsOnceForAPowerOfTwo) {
  const Values v = {0, 1, -1, 16777217, 16777219, -9007199254740993.0, 4611686018427387904.0, 3e12};
  Guarded x = integers(v), y(DType::fp32, {int64_t(v.size())});
  Values want;
  for (size_t i = 0; i < v.size(); ++i) want.push_back(double(float(int64_t(v[i]))) * 0x1p-54);
  TestStream stream;
  launch(FromGrid{.y = y, .x = x, .scale = 0x1p-54f}, stream);
  expect_near(y, want, 0, 0, "y");
}

TEST_P(AddIntegersKernel, AddsExactlyAndWraps) {
  Values a = random_values(4099, 1, 1e15), b = random_values(4099, 2, 1e15), want;
  Guarded y = integers(a), x = integers(b);
  for (size_t i = 0; i < a.size(); ++i) want.push_back(double(int64_t(a[i]) + int64_t(b[i])));
  TestStream stream;
  launch(AddIntegers{.y = y, .x = x}, stream);
  expect_near(y, want, 0, 0, "y");
  Guarded high = integers({0x1p62}), more = integers({0x1p62});
  launch(AddIntegers{.y = high, .x = more}, stream);
  EXPECT_EQ(bits_of(high)[0], std::numeric_limits<int64_t>::min());
}

TEST_P(SumIntegerSquaresKernel, IsExactInFourWords) {
  for (double scale : {3.0, 1e6, 1e12, 1e18}) {
    Values v = random_values(70001, 3, scale);
    for (double& e : v) e = std::clamp(e, -0x1p62, 0x1p62);
    Guarded x = integers(v), out = integers(Values(4, 9));
    unsigned __int128 low = 0, high = 0;  // low 96 bits and the rest
    for (const int64_t e : bits_of(x)) {
      const auto size = static_cast<unsigned __int128>(e < 0 ? -e : e);
      const unsigned __int128 square = size * size,
                              part = square & ((static_cast<unsigned __int128>(1) << 96) - 1);
      low += part, high += square >> 96;
    }
    high += low >> 96, low &= (static_cast<unsigned __int128>(1) << 96) - 1;
    TestStream stream;
    launch(SumIntegerSquares{.out = out, .x = x}, stream);
    const std::vector<int64_t> got = bits_of(out);
    unsigned __int128 sum = 0, carried = static_cast<unsigned __int128>(got[3]);
    for (int w = 0; w < 3; ++w) sum += static_cast<unsigned __int128>(got[size_t(w)]) << (32 * w);
    carried += sum >> 96, sum &= (static_cast<unsigned __int128>(1) << 96) - 1;
    EXPECT_TRUE(sum == low && carried == high) << scale;
    EXPECT_TRUE(out.intact());
  }
  Guarded out = integers(Values(4, 9));
  TestStream stream;
  launch(SumIntegerSquares{.out = out, .x = Guarded(DType::int64, {0})}, stream);
  expect_near(out, {0, 0, 0, 0}, 0, 0, "out");
}

TEST(ExactOps, RejectOtherTypesAndSizes) {
  Guarded ints(DType::int64, {4}), floats(DType::fp32, {4}), half(DType::bf16, {4}), one(DType::int64, {1});
  const auto refused = [](const auto& op) {
    try {
      op.check();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(RoundToGrid{.y = ints, .bad = one, .x = half}).find("fp32"), std::string::npos);
  EXPECT_NE(refused(RoundToGrid{.y = floats, .bad = one, .x = floats}).find("int64"), std::string::npos);
  EXPECT_NE(refused(RoundToGrid{.y = ints, .bad = ints, .x = floats}).find("1 elements"), std::string::npos);
  EXPECT_NE(refused(RoundToGrid{.y = ints, .bad = one, .x = floats, .limit = 0x1p63}).find("2^62"),
            std::string::npos);
  EXPECT_NE(refused(FromGrid{.y = half, .x = ints}), "");
  EXPECT_NE(refused(AddIntegers{.y = ints, .x = one}), "");
  EXPECT_NE(refused(SumIntegerSquares{.out = one, .x = ints}).find("4 elements"), std::string::npos);
}

}  // namespace
}  // namespace cleave::kernels
