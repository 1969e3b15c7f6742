#include "kernels/activation.h"

#include <immintrin.h>

#include <numbers>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Activation);
KERNEL_SUITE(Add);
KERNEL_SUITE(Dropout);
KERNEL_SUITE(Gated);
KERNEL_SUITE(SoftCap);

double f(Activation kind, double x) {
  switch (kind) {
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

double slope(Activation kind, double x) {
  const double h = 1e-5 * std::max(1.0, std::fabs(x));
  if (kind == Activation::relu) return x > 0 ? 1 : 0;
  return (8 * (f(kind, x + h) - f(kind, x - h)) - (f(kind, x + 2 * h) - f(kind, x - 2 * h))) / (12 * h);
}

constexpr Activation kKinds[] = {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu,
                                 Activation::silu};

Values sweep(int64_t numel) {
  Values v(size_t(numel), 0.0);
  for (size_t i = 0; i < v.size(); ++i) v[i] = -12 + 24 * double(i) / double(std::max<int64_t>(1, numel - 1));
  return v;
}

TEST_P(ActivationKernel, ForwardAndBackwardEqualDoublePrecision) {
  for (Activation kind : kKinds)
    for (DType type : kTrainingTypes)
      for (int64_t numel : {0, 1, 15, 16, 17, 1000, 20011}) {
        Guarded x(type, {numel}, sweep(numel)), y(type, {numel}), dx(type, {numel});
        Guarded dy(type, {numel}, random_values(numel, 1));
        Values want_y, want_dx;
        for (size_t i = 0; i < size_t(numel); ++i) {
          want_y.push_back(f(kind, x.at(i)));
          want_dx.push_back(dy.at(i) * slope(kind, x.at(i)));
        }
        TestStream stream;
        launch(ActivationForward{.y = y, .x = x, .kind = kind}, stream);
        launch(ActivationBackward{.dx = dx, .dy = dy, .x = x, .kind = kind}, stream);
        // fp16 storage loses relative precision below its normal range.
        expect_near(y, want_y, half_ulp(type) + 2e-6, type == DType::fp16 ? 6e-8 : 1e-10, "y");
        expect_near(dx, want_dx, half_ulp(type) + 1e-6, 2e-6, "dx");
      }
}

TEST_P(ActivationKernel, PropagatesNan) {
  for (Activation kind : kKinds)
    for (DType type : {DType::fp32, DType::bf16, DType::fp16}) {
      Guarded x(type, {33}, Values(33, NAN)), y(type, {33});
      TestStream stream;
      launch(ActivationForward{.y = y, .x = x, .kind = kind}, stream);
      for (size_t i = 0; i < 33; ++i) EXPECT_TRUE(std::isnan(y.at(i))) << int(kind) << " " << name_of(type);
    }
}

// A subnormal result costs a CPU more than a hundred cycles per vector, even if it is discarded. The
// underflow flag belongs to the calling thread, which computes so few elements alone.
TEST(CpuActivation, ComputesNoSubnormalIntermediates) {
  const Guarded x(DType::fp32, {64}, Values(64, 30.0)), y(DType::fp32, {64});
  for (const Activation kind : {Activation::gelu_tanh, Activation::silu}) {
    _mm_setcsr(_mm_getcsr() & ~unsigned{_MM_EXCEPT_MASK});
    cpu::run(ActivationForward{.y = y, .x = x, .kind = kind});
    EXPECT_FALSE(_mm_getcsr() & _MM_EXCEPT_UNDERFLOW) << int(kind);
  }
  const Guarded far(DType::fp32, {64}, Values(64, 200.0));
  _mm_setcsr(_mm_getcsr() & ~unsigned{_MM_EXCEPT_MASK});
  cpu::run(ActivationForward{.y = y, .x = far, .kind = Activation::silu});
  EXPECT_FALSE(_mm_getcsr() & _MM_EXCEPT_UNDERFLOW);
}

TEST_P(GatedKernel, ForwardAndBackwardEqualDoublePrecision) {
  for (Activation kind : kKinds)
    for (DType type : kTrainingTypes)
      for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {3, 16}, {5, 17}, {40, 1001}, {0, 4}}) {
        const int64_t n = rows * width;
        Guarded x(type, {rows, 2 * width}), dx(type, {rows, 2 * width}), y(type, {rows, width});
        Guarded dy(type, {rows, width}, random_values(n, 1));
        const Values gates = sweep(n), ups = random_values(n, 2);
        Values want_y, want_dx(size_t(2 * n), 0.0);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < width; ++i) {
            const size_t gate = size_t(2 * r * width + i), up = gate + size_t(width),
                         out = size_t(r * width + i);
            x.put(gate, 4 * gates[out]), x.put(up, ups[out]);
            const double g = x.at(gate), u = x.at(up), d = dy.at(out);
            want_y.push_back(f(kind, g) * u);
            want_dx[gate] = d * u * slope(kind, g);
            want_dx[up] = d * f(kind, g);
          }
        TestStream stream;
        launch(GatedForward{.y = y, .x = x, .kind = kind}, stream);
        launch(GatedBackward{.dx = dx, .dy = dy, .x = x, .kind = kind}, stream);
        // fp16 storage loses relative precision below its normal range.
        expect_near(y, want_y, half_ulp(type) * 1.01 + 1e-6, type == DType::fp16 ? 6e-8 : 1e-10, "y");
        expect_near(dx, want_dx, half_ulp(type) * 1.01 + 1e-6, 1e-6, "dx");
        launch(GatedBackward{.dx = x, .dy = dy, .x = x, .kind = kind}, stream);
        EXPECT_EQ(x.values(), dx.values()) << "in place";
      }
}

TEST_P(SoftCapKernel, EqualsDoublePrecisionAndHoldsTheCap) {
  for (DType type : kTrainingTypes)
    for (float cap : {0.75f, 30.0f})
      for (int64_t numel : {0, 1, 17, 4001}) {
        Values v = sweep(numel);
        for (size_t i = 0; i < v.size(); i += 3)
          v[i] *= 1e-3;  // range with loss of digits in a quotient of exponentials
        if (numel > 1) v[0] = INFINITY, v[1] = -INFINITY;
        Guarded x(type, {numel}, v), y(type, {numel});
        Values want;
        for (size_t i = 0; i < size_t(numel); ++i) want.push_back(cap * std::tanh(x.at(i) / cap));
        TestStream stream;
        launch(SoftCap{.y = y, .x = x, .cap = cap}, stream);
        expect_near(y, want, half_ulp(type) * 1.01 + 5e-7, type == DType::fp16 ? 6e-8 : 1e-10, "y");
        launch(SoftCap{.y = x, .x = x, .cap = cap}, stream);
        EXPECT_EQ(x.bits(), y.bits()) << "in place";
      }
  Guarded bad(DType::fp32, {17}, Values(17, NAN));
  TestStream stream;
  launch(SoftCap{.y = bad, .x = bad, .cap = 2}, stream);
  for (size_t i = 0; i < 17; ++i) EXPECT_TRUE(std::isnan(bad.at(i)));
}

TEST_P(AddKernel, SumsInPlace) {
  for (DType type : kTrainingTypes) {
    Guarded a(type, {133}, random_values(133, 1)), b(type, {133}, random_values(133, 2));
    Values want;
    for (size_t i = 0; i < 133; ++i) want.push_back(a.at(i) + b.at(i));
    TestStream stream;
    launch(Add{.y = a, .a = a, .b = b}, stream);
    expect_near(a, want, half_ulp(type) * 1.01, 1e-7, "y");
  }
}

TEST_P(DropoutKernel, KeepsExactlyTheElementsChosenByPhilox) {
  const Philox philox{.seed = 77, .stream = hash_name("mask")};
  for (DType type : kTrainingTypes)
    for (int64_t offset : {int64_t{0}, int64_t{1}, int64_t{4099}, int64_t{1} << 34, (int64_t{1} << 34) - 7})
      for (float p : {0.0f, 0.1f, 0.5f, 1.0f}) {
        const int64_t numel = 5003;
        Guarded x(type, {numel}, random_values(numel, 3)), y(type, {numel});
        Values want;
        for (int64_t i = 0; i < numel; ++i)
          want.push_back(philox.uniform(uint64_t(offset + i)) >= p ? x.at(size_t(i)) / (1 - double(p)) : 0);
        TestStream stream;
        launch(Dropout{.y = y, .x = x, .p = p, .philox = philox, .offset = offset}, stream);
        expect_near(y, want, half_ulp(type) + 2e-7, 0, "y");
      }
}

}  // namespace
}  // namespace cleave::kernels
