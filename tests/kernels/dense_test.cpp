#include "kernels/dense.h"

#include <numbers>

#include "tests/kernels/cases/matmul.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Dense);

constexpr Activation kEpilogues[] = {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu};

double activated(Activation kind, double x) {
  if (kind == Activation::relu) return std::max(0.0, x);
  if (kind == Activation::gelu_erf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double activated_slope(Activation kind, double x) {
  if (kind == Activation::relu) return x > 0;
  const double h = 1e-5;
  return (8 * (activated(kind, x + h) - activated(kind, x - h)) -
          (activated(kind, x + 2 * h) - activated(kind, x - 2 * h))) /
         (12 * h);
}

// Products of a training step, some with rows that are not aligned to 16 bytes, and empty ones.
constexpr MatmulCase kProducts[] = {{64, 96, 128}, {1, 1, 1}, {7, 13, 5},    {33, 129, 65},
                                    {0, 4, 3},     {3, 5, 0}, {130, 200, 24}};

// Row i of a times row j of b, both with k columns; `a_columns` or `b_columns` uses columns instead.
double dot(const Guarded& a, bool a_columns, const Guarded& b, bool b_columns, int64_t i, int64_t j,
           int64_t k) {
  const int64_t as = a_columns && k ? a.numel() / k : 0, bs = b_columns && k ? b.numel() / k : 0;
  double sum = 0;
  for (int64_t l = 0; l < k; ++l)
    sum +=
        a.at(size_t(a_columns ? l * as + i : i * k + l)) * b.at(size_t(b_columns ? l * bs + j : j * k + l));
  return sum;
}

// Maximum slope of f, which amplifies an error of its argument.
constexpr double kSteepest = 1.13;

void expect_forward(const MatmulCase& size, DType type, Activation kind, bool with_bias) {
  const auto [m, n, k] = size;
  Guarded x(type, {m, k}, random_values(m * k, 1)), w(type, {n, k}, random_values(n * k, 2, 0.1));
  Guarded bias(type, {n}, random_values(n, 3)), y(type, {m, n}), hidden(type, {m, n});
  TestStream stream;
  launch(DenseActivation{.y = y,
                         .hidden = hidden,
                         .x = x,
                         .weight = w,
                         .bias = with_bias ? bias.tensor() : Tensor(),
                         .kind = kind},
         stream);
  const double ulp = half_ulp(type) * 1.01, sums = double(k + 4) * 0x1p-22;
  for (int64_t i = 0; i < m * n; ++i) {
    const double h = dot(x, false, w, false, i / n, i % n, k) + (with_bias ? bias.at(size_t(i % n)) : 0);
    const double want = activated(kind, h);
    ASSERT_NEAR(hidden.at(size_t(i)), h, ulp * std::fabs(h) + sums) << "hidden at " << i;
    ASSERT_NEAR(y.at(size_t(i)), want, ulp * (std::fabs(want) + kSteepest * std::fabs(h)) + 2 * sums + 1e-6)
        << "y at " << i;
  }
  EXPECT_TRUE(y.intact() && hidden.intact());
}

TEST_P(DenseKernel, ActivationEqualsDoublePrecision) {
  for (const MatmulCase& size : kProducts)
    for (DType type : kTrainingTypes)
      for (Activation kind : kEpilogues)
        for (bool bias : {false, true}) {
          SCOPED_TRACE(fmt::format("{}x{}x{} {} kind {}{}", size.m, size.n, size.k, name_of(type), int(kind),
                                   bias ? " bias" : ""));
          expect_forward(size, type, kind, bias);
        }
}

TEST_P(DenseKernel, ActivationGradientEqualsDoublePrecision) {
  for (const auto& [m, n, k] : kProducts)
    for (DType type : kTrainingTypes)
      for (Activation kind : kEpilogues) {
        Guarded dy(type, {m, k}, random_values(m * k, 1)), w(type, {k, n}, random_values(n * k, 2, 0.1));
        Guarded hidden(type, {m, n}, random_values(m * n, 3, 2)), dhidden(type, {m, n});
        TestStream stream;
        launch(
            DenseActivationGradient{
                .dhidden = dhidden, .dy = dy, .weight = w, .hidden = hidden, .kind = kind},
            stream);
        // A GPU library may use the hardware's tanh with 11 bits, which is visible where the slope is near 0.
        const double tanh = TestDevice::current() && type != DType::fp32 ? 0x1p-10 : 0;
        for (int64_t i = 0; i < m * n; ++i) {
          const double product = dot(dy, false, w, true, i / n, i % n, k);
          const double want = product * activated_slope(kind, hidden.at(size_t(i)));
          ASSERT_NEAR(dhidden.at(size_t(i)), want,
                      2.05 * half_ulp(type) * std::fabs(want) + tanh * std::fabs(product) +
                          double(k + 4) * 0x1p-21 + 2e-6)
              << fmt::format("{}x{}x{} {} kind {} at {}", m, n, k, name_of(type), int(kind), i);
        }
        EXPECT_TRUE(dhidden.intact());
      }
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST_P(DenseKernel, GatedUnitEqualsDoublePrecision) {
  for (const auto& [m, n, k] : kProducts)
    for (DType type : kTrainingTypes)
      for (bool with_bias : {false, true}) {
        Guarded x(type, {m, k}, random_values(m * k, 1)),
            w(type, {2 * n, k}, random_values(2 * n * k, 2, 0.1));
        Guarded bias(type, {2 * n}, random_values(2 * n, 3)), y(type, {m, n}), hidden(type, {m, 2 * n});
        TestStream stream;
        launch(
            DenseGated{
                .y = y, .hidden = hidden, .x = x, .weight = w, .bias = with_bias ? bias.tensor() : Tensor()},
            stream);
        const double ulp = half_ulp(type) * 1.01, sums = double(k + 4) * 0x1p-22;
        SCOPED_TRACE(fmt::format("{}x{}x{} {}{}", m, n, k, name_of(type), with_bias ? " bias" : ""));
        for (int64_t i = 0; i < m * n; ++i) {
          const auto product = [&](int64_t column) {
            return dot(x, false, w, false, i / n, column, k) + (with_bias ? bias.at(size_t(column)) : 0);
          };
          const double gate = product(i % n), up = product(n + i % n), want = silu(gate) * up;
          const size_t at = size_t(i / n * 2 * n + i % n);
          ASSERT_NEAR(hidden.at(at), gate, ulp * std::fabs(gate) + sums) << "gate at " << i;
          ASSERT_NEAR(hidden.at(at + size_t(n)), up, ulp * std::fabs(up) + sums) << "up at " << i;
          ASSERT_NEAR(y.at(size_t(i)), want,
                      ulp * (2 * std::fabs(want) + kSteepest * std::fabs(gate * up)) +
                          sums * (2 + 2 * std::fabs(gate) + 2 * std::fabs(up)) + 1e-6)
              << "y at " << i;
        }
        EXPECT_TRUE(y.intact() && hidden.intact());
      }
}

TEST_P(DenseKernel, GatedUnitGradientEqualsDoublePrecision) {
  for (const auto& [m, n, k] : kProducts)
    for (DType type : kTrainingTypes) {
      Guarded dy(type, {m, k}, random_values(m * k, 1)), w(type, {k, n}, random_values(n * k, 2, 0.1));
      Guarded hidden(type, {m, 2 * n}, random_values(2 * m * n, 3, 2)), dhidden(type, {m, 2 * n}),
          room(type, {m, n});
      TestStream stream;
      launch(DenseGatedGradient{.dhidden = dhidden, .dactive = room, .dy = dy, .weight = w, .hidden = hidden},
             stream);
      for (int64_t i = 0; i < m * n; ++i) {
        const size_t at = size_t(i / n * 2 * n + i % n);
        const double product = dot(dy, false, w, true, i / n, i % n, k), gate = hidden.at(at),
                     up = hidden.at(at + size_t(n)), s = 1 / (1 + std::exp(-gate));
        const auto expect = [&](double got, double want, const char* what) {
          ASSERT_NEAR(got, want,
                      2.05 * half_ulp(type) * std::fabs(want) +
                          double(k + 4) * 0x1p-21 * (1 + std::fabs(up) + std::fabs(gate)) + 2e-6)
              << fmt::format("{}x{}x{} {} {} at {}", m, n, k, name_of(type), what, i);
        };
        expect(dhidden.at(at), product * up * s * (1 + gate * (1 - s)), "gate");
        expect(dhidden.at(at + size_t(n)), product * gate * s, "up");
      }
      EXPECT_TRUE(dhidden.intact() && room.intact());
    }
}

TEST_P(DenseKernel, WeightGradientAndItsBiasEqualDoublePrecision) {
  for (const auto& [rows, out, in] : kProducts)
    for (DType type : kTrainingTypes)
      for (DType of : {type, DType::fp32})
        for (int flags = 0; flags < 4; ++flags) {
          const bool add_weight = flags & 1, add_bias = flags & 2;
          Guarded dy(type, {rows, out}, random_values(rows * out, 1)),
              x(type, {rows, in}, random_values(rows * in, 2));
          Guarded dw(of, {out, in}, random_values(out * in, 3)), db(of, {out}, random_values(out, 4));
          Values weight = add_weight ? dw.values() : Values(size_t(out * in), 0.0),
                 bias = add_bias ? db.values() : Values(size_t(out), 0.0);
          for (int64_t i = 0; i < out * in; ++i)
            weight[size_t(i)] += dot(dy, true, x, true, i / in, i % in, rows);
          for (int64_t i = 0; i < rows * out; ++i) bias[size_t(i % out)] += dy.at(size_t(i));
          TestStream stream;
          launch(DenseWeightGradient{.dweight = dw,
                                     .dbias = db,
                                     .dy = dy,
                                     .x = x,
                                     .accumulate_weight = add_weight,
                                     .accumulate_bias = add_bias},
                 stream);
          SCOPED_TRACE(
              fmt::format("{}x{}x{} {} into {}, flags {}", rows, out, in, name_of(type), name_of(of), flags));
          // A product or sum may be rounded before it is added to a gradient: at most 50 here, from about 100
          // rows.
          const double sums = double(rows + 4) * 0x1p-22, rounded = half_ulp(of) * 50;
          expect_near(dw, weight, half_ulp(of) * 1.01, sums + (add_weight ? rounded : 0), "dweight");
          expect_near(db, bias, half_ulp(of) * 1.01, sums + (add_bias ? rounded : 0), "dbias");
        }
}

// A layer's results do not depend on its division into ops.
TEST(Dense, EqualsItsTwoKernelsBitForBitOnTheCpu) {
  const int64_t m = 53, n = 77, k = 39;
  for (DType type : kTrainingTypes) {
    Guarded x(type, {m, k}, random_values(m * k, 1)), w(type, {n, k}, random_values(n * k, 2)),
        bias(type, {n}, random_values(n, 3));
    Guarded y(type, {m, n}), hidden(type, {m, n}), y2(type, {m, n}), hidden2(type, {m, n});
    TestStream stream;
    launch(DenseActivation{.y = y, .hidden = hidden, .x = x, .weight = w, .bias = bias}, stream);
    launch(Matmul{.c = hidden2, .a = x, .b = w, .bias = bias, .transpose_b = true}, stream);
    launch(ActivationForward{.y = y2, .x = hidden2}, stream);
    EXPECT_EQ(hidden.bits(), hidden2.bits());
    EXPECT_EQ(y.bits(), y2.bits());

    Guarded wide(type, {k, n}, random_values(n * k, 4));
    launch(DenseActivationGradient{.dhidden = y, .dy = x, .weight = wide, .hidden = hidden}, stream);
    launch(Matmul{.c = y2, .a = x, .b = wide}, stream);
    launch(ActivationBackward{.dx = y2, .dy = y2, .x = hidden}, stream);
    EXPECT_EQ(y.bits(), y2.bits());

    const int64_t half = n - 1;  // even number of columns
    Guarded gates(type, {2 * half, k}, random_values(2 * half * k, 6)), both(type, {m, 2 * half}),
        both2(type, {m, 2 * half}), active(type, {m, half}), active2(type, {m, half});
    launch(DenseGated{.y = active, .hidden = both, .x = x, .weight = gates, .bias = {}}, stream);
    launch(Matmul{.c = both2, .a = x, .b = gates, .transpose_b = true}, stream);
    launch(GatedForward{.y = active2, .x = both2}, stream);
    EXPECT_EQ(both.bits(), both2.bits());
    EXPECT_EQ(active.bits(), active2.bits());

    Guarded dw(type, {n, k}, random_values(n * k, 5)), dw2(type, {n, k}, random_values(n * k, 5)),
        db(type, {n}), db2(type, {n});
    launch(DenseWeightGradient{.dweight = dw, .dbias = db, .dy = y, .x = x, .accumulate_weight = true},
           stream);
    launch(Matmul{.c = dw2, .a = y, .b = x, .transpose_a = true, .accumulate = true}, stream);
    launch(BiasGradient{.db = db2, .dy = y}, stream);
    EXPECT_EQ(dw.bits(), dw2.bits());
    EXPECT_EQ(db.bits(), db2.bits());
  }
}

TEST(Dense, RejectsInvalidOperands) {
  const DType t = DType::fp32;
  Guarded x(t, {3, 4}), w(t, {5, 4}), bias(t, {5}), y(t, {3, 5}), hidden(t, {3, 5}), narrow(t, {3, 4}),
      half(DType::bf16, {3, 5});
  const DenseActivation good{.y = y, .hidden = hidden, .x = x, .weight = w, .bias = bias};
  EXPECT_NO_THROW(good.check());
  auto refused = [](auto op, auto change) {
    change(op);
    EXPECT_THROW(op.check(), Error);
  };
  refused(good, [&](auto& op) { op.y = hidden; });
  refused(good, [&](auto& op) { op.y = half; });
  refused(good, [&](auto& op) { op.weight = x; });
  refused(good, [&](auto& op) { op.bias = narrow; });
  Guarded dy(t, {3, 6}), next(t, {6, 5});
  const DenseActivationGradient gradient{.dhidden = y, .dy = dy, .weight = next, .hidden = hidden};
  EXPECT_NO_THROW(gradient.check());
  refused(gradient, [&](auto& op) { op.hidden = y; });
  refused(gradient, [&](auto& op) { op.hidden = narrow; });
  Guarded wide(t, {3, 10}), both(t, {10, 4}), dwide(t, {3, 10});
  const DenseGated gated{.y = y, .hidden = wide, .x = x, .weight = both, .bias = {}};
  EXPECT_NO_THROW(gated.check());
  refused(gated, [&](auto& op) { op.y = wide; });
  refused(gated, [&](auto& op) { op.y = half; });
  refused(gated, [&](auto& op) { op.hidden = hidden; });
  refused(gated, [&](auto& op) { op.weight = w; });
  const DenseGatedGradient of_both{.dhidden = dwide, .dactive = y, .dy = dy, .weight = next, .hidden = wide};
  EXPECT_NO_THROW(of_both.check());
  refused(of_both, [&](auto& op) { op.dhidden = wide; });
  refused(of_both, [&](auto& op) { op.dactive = narrow; });
  refused(of_both, [&](auto& op) { op.hidden = hidden; });
  Guarded dw(t, {5, 4}), db(t, {5});
  const DenseWeightGradient weight{.dweight = dw, .dbias = db, .dy = y, .x = x};
  EXPECT_NO_THROW(weight.check());
  refused(weight, [&](auto& op) { op.dbias = narrow; });
  refused(weight, [&](auto& op) { op.dbias = Tensor(dw.tensor().raw(), t, {5}); });
}

}  // namespace
}  // namespace cleave::kernels
