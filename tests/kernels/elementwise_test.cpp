#include "kernels/elementwise.h"

#include <limits>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Cast);
KERNEL_SUITE(Fill);
KERNEL_SUITE(Axpy);
KERNEL_SUITE(Scale);
KERNEL_SUITE(CopyRuns);
KERNEL_SUITE(SumSquares);
KERNEL_SUITE(Sum);
KERNEL_SUITE(RandomFill);

double sum_squares(const Tensor& x) {
  Guarded out(DType::fp64, {1});
  TestStream stream;
  launch(SumSquares{.out = out, .x = x}, stream);
  return out.at(0);
}

TEST_P(CastKernel, RoundsAsStorageDoes) {
  const DType types[] = {DType::fp32, DType::bf16, DType::fp16, DType::fp64};
  for (DType from : types)
    for (DType to : types)
      for (int64_t numel : {0, 1, 31, 1000}) {
        Guarded x(from, {numel}, random_values(numel, 1)), y(to, {numel});
        Values want;
        for (size_t i = 0; i < size_t(numel); ++i) want.push_back(rounded(x.at(i), to));
        TestStream stream;
        launch(Cast{.y = y, .x = x}, stream);
        expect_near(y, want, 0, 0, "y");
      }
}

TEST_P(CastKernel, KeepsInfinityAndNaN) {
  for (DType to : {DType::bf16, DType::fp16}) {
    const double inf = std::numeric_limits<double>::infinity();
    Guarded x(DType::fp32, {4}, {inf, -inf, std::nan(""), 1e38}), y(to, {4});
    TestStream stream;
    launch(Cast{.y = y, .x = x}, stream);
    EXPECT_EQ(y.at(0), inf);
    EXPECT_EQ(y.at(1), -inf);
    EXPECT_TRUE(std::isnan(y.at(2)));
    EXPECT_EQ(y.at(3), rounded(1e38, to));
  }
}

TEST_P(ScaleKernel, MultipliesAndRoundsOnce) {
  for (DType type : {DType::fp32, DType::bf16, DType::fp16})
    for (int64_t numel : {0, 1, 31, 1000})
      for (float factor : {1.0f, 34.0f, 0.3f}) {
        Guarded x(type, {numel}, random_values(numel, 1)), y(type, {numel});
        Values want;
        for (size_t i = 0; i < size_t(numel); ++i)
          want.push_back(rounded(double(float(x.at(i) * double(factor))), type));
        TestStream stream;
        launch(Scale{.y = y, .x = x, .factor = factor}, stream);
        expect_near(y, want, 0, 0, "y");
        launch(Scale{.y = x, .x = x, .factor = factor}, stream);
        EXPECT_EQ(x.bits(), y.bits()) << "in place";
      }
}

TEST_P(FillKernel, SetsEveryElement) {
  for (DType type : {DType::fp32, DType::fp16, DType::bf16, DType::fp64, DType::int64, DType::int32,
                     DType::uint16, DType::uint8}) {
    Guarded y(type, {77});
    TestStream stream;
    launch(Fill{.y = y, .value = 3}, stream);
    expect_near(y, Values(77, 3.0), 0, 0, "y");
  }
}

// Transposes [outer, inner, width] to [inner, outer, width], between rows wider than the runs.
TEST_P(CopyRunsKernel, MovesEachRunAndNothingElse) {
  const int64_t outer = 3, inner = 5, width = 7, row = 9;
  for (DType type : {DType::fp32, DType::bf16, DType::fp16, DType::fp64, DType::int32, DType::uint8}) {
    Values values;
    for (int i = 0; i < outer * inner * row; ++i) values.push_back(i % 251);
    Guarded x(type, {outer * inner * row}, values), y(type, {outer * inner * row}, Values(values.size(), 1));
    Values want(values.size(), 1);
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i)
        for (int64_t j = 0; j < width; ++j)
          want[size_t((i * outer + o) * row + 2 + j)] = values[size_t((o * inner + i) * row + j)];
    TestStream stream;
    const Tensor shifted = Tensor(y).slice({2, outer * inner * row});
    launch(CopyRuns{.y = shifted,
                    .x = x,
                    .width = width,
                    .outer = {outer, row, inner * row},
                    .inner = {inner, outer * row, row}},
           stream);
    expect_near(y, want, 0, 0, "y");
  }
}

TEST_P(AxpyKernel, AddsInFloatAndRoundsOnce) {
  for (DType ty : kTrainingTypes)
    for (DType tx : kTrainingTypes) {
      Guarded y(ty, {101}, random_values(101, 1)), x(tx, {101}, random_values(101, 2));
      Values want;
      for (size_t i = 0; i < 101; ++i) want.push_back(y.at(i) + 0.3f * x.at(i));
      TestStream stream;
      launch(Axpy{.y = y, .x = x, .alpha = 0.3f}, stream);
      expect_near(y, want, half_ulp(ty) * 1.01, 1e-7, "y");
    }
}

TEST_P(SumSquaresKernel, IsAccurateAndIndependentOfAppendedZeros) {
  for (DType type : kTrainingTypes) {
    Values v = random_values(70001, 1);
    Guarded x(type, {70001}, v);
    double want = 0;
    for (size_t i = 0; i < v.size(); ++i) want += x.at(i) * x.at(i);
    const double got = sum_squares(x);
    EXPECT_NEAR(got, want, 1e-12 * want);
    v.resize(90000, 0.0);
    EXPECT_EQ(sum_squares(Guarded(type, {90000}, v)), got);
  }
  EXPECT_EQ(sum_squares(Guarded(DType::fp32, {0})), 0);
}

TEST_P(SumSquaresKernel, IsNonFiniteIfAnyElementIs) {
  for (DType type : kTrainingTypes)
    for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()})
      for (size_t place : {size_t{0}, size_t{4999}, size_t{9998}}) {
        Guarded x(type, {9999}, random_values(9999, 1));
        x.put(place, bad);
        EXPECT_FALSE(std::isfinite(sum_squares(x)));
      }
}

TEST_P(SumKernel, AddsInDouble) {
  Guarded x(DType::fp32, {9999}, random_values(9999, 1)), out(DType::fp64, {1});
  double want = 0;
  for (size_t i = 0; i < 9999; ++i) want += x.at(i);
  TestStream stream;
  launch(Sum{.out = out, .x = x}, stream);
  EXPECT_NEAR(out.at(0), want, 1e-10);
}

TEST_P(RandomFillKernel, IsAFunctionOfTheIndex) {
  const Philox philox{.seed = 1, .stream = hash_name("h.0.attn.qkv.weight")};
  for (bool normal : {false, true}) {
    Guarded whole(DType::fp32, {10000}), part(DType::fp32, {3000});
    TestStream stream;
    launch(RandomFill{.y = whole, .philox = philox, .first = 5, .scale = 0.02f, .normal = normal}, stream);
    launch(RandomFill{.y = part, .philox = philox, .first = 4005, .scale = 0.02f, .normal = normal}, stream);
    for (size_t i = 0; i < 3000; ++i) ASSERT_EQ(part.at(i), whole.at(i + 4000));
    for (size_t i = 0; i < 10000; ++i) {
      const double draw = normal ? philox.normal(i + 5) : 2.0 * philox.uniform(i + 5) - 1.0;
      ASSERT_NEAR(whole.at(i), 0.02f * draw, 0.02 * 1e-6) << i;
    }
    double mean = 0, square = 0;
    for (size_t i = 0; i < 10000; ++i) mean += whole.at(i) / 1e4, square += whole.at(i) * whole.at(i) / 1e4;
    EXPECT_NEAR(mean, 0, 0.02 * 4 / 100);
    EXPECT_NEAR(std::sqrt(square), normal ? 0.02 : 0.02 / std::sqrt(3.0), 0.02 * 0.03);
  }
}

}  // namespace
}  // namespace cleave::kernels
