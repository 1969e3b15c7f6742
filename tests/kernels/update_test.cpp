#include "kernels/update.h"

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Adam);
KERNEL_SUITE(Sgd);
KERNEL_SUITE(Lion);
KERNEL_SUITE(Adagrad);
KERNEL_SUITE(LambMoments);
KERNEL_SUITE(LambStep);

Values positive(Values v) {
  for (double& x : v) x = x * x;
  return v;
}

TEST_P(AdamKernel, EqualsItsFormulaInDoublePrecision) {
  for (DType grad_type : kTrainingTypes)
    for (DType copy_type : kTrainingTypes)
      for (bool decoupled : {false, true})
        for (int64_t step : {1, 2, 7, 100})
          for (int64_t n : {0, 1, 1003}) {
            Guarded p(DType::fp32, {n}, random_values(n, 1)), m(DType::fp32, {n}, random_values(n, 2, 0.1));
            Guarded v(DType::fp32, {n}, positive(random_values(n, 3, 0.1))), copy(copy_type, {n});
            Guarded g(grad_type, {n}, random_values(n, 4));
            Adam op{.param = p,
                    .m = m,
                    .v = v,
                    .copy = step == 1 ? copy.tensor() : Tensor(),
                    .grad = g,
                    .lr = 0.01f,
                    .weight_decay = 0.1f,
                    .grad_scale = 0.5f,
                    .step = step,
                    .decoupled = decoupled,
                    .bias_correction = step != 100};
            // 1 - beta^step (Kingma and Ba, arXiv 1412.6980, algorithm 1).
            const double c1 = step == 100 ? 1 : 1 - std::pow(double(op.beta1), double(step)),
                         c2 = step == 100 ? 1 : 1 - std::pow(double(op.beta2), double(step));
            Values wp, wm, wv;
            for (size_t i = 0; i < size_t(n); ++i) {
              const double grad = g.at(i) * 0.5 + (decoupled ? 0 : double(op.weight_decay) * p.at(i));
              wm.push_back(double(op.beta1) * m.at(i) + (1 - double(op.beta1)) * grad);
              wv.push_back(double(op.beta2) * v.at(i) + (1 - double(op.beta2)) * grad * grad);
              wp.push_back(p.at(i) - double(op.lr) * (wm[i] / c1 / (std::sqrt(wv[i] / c2) + double(op.eps)) +
                                                      (decoupled ? double(op.weight_decay) * p.at(i) : 0)));
            }
            TestStream stream;
            launch(op, stream);
            expect_near(p, wp, 1e-6, 1e-7, "param");
            expect_near(m, wm, 1e-6, 1e-7, "m");
            expect_near(v, wv, 1e-6, 1e-7, "v");
            for (size_t i = 0; step == 1 && i < size_t(n); ++i)
              ASSERT_EQ(copy.at(i), rounded(p.at(i), copy_type));
          }
}

TEST_P(SgdKernel, EqualsItsFormulaInDoublePrecision) {
  for (DType grad_type : kTrainingTypes)
    for (float momentum : {0.0f, 0.9f})
      for (bool nesterov : {false, true})
        for (bool first : {false, true}) {
          const int64_t n = 1003;
          Guarded p(DType::fp32, {n}, random_values(n, 1)), b(DType::fp32, {n}, random_values(n, 2)),
              copy(grad_type, {n});
          Guarded g(grad_type, {n}, random_values(n, 4));
          Sgd op{.param = p,
                 .buffer = momentum != 0 ? b.tensor() : Tensor(),
                 .copy = copy,
                 .grad = g,
                 .lr = 0.1f,
                 .momentum = momentum,
                 .dampening = 0.25f,
                 .weight_decay = 0.01f,
                 .grad_scale = 2,
                 .nesterov = nesterov,
                 .first = first};
          Values wp, wb;
          for (size_t i = 0; i < size_t(n); ++i) {
            double grad = 2 * g.at(i) + double(op.weight_decay) * p.at(i);
            if (momentum != 0) {
              wb.push_back(first ? grad : double(momentum) * b.at(i) + 0.75 * grad);
              grad = nesterov ? grad + double(momentum) * wb[i] : wb[i];
            }
            wp.push_back(p.at(i) - double(op.lr) * grad);
          }
          TestStream stream;
          launch(op, stream);
          expect_near(p, wp, 1e-6, 1e-6, "param");
          if (momentum != 0) expect_near(b, wb, 1e-6, 1e-6, "buffer");
          for (size_t i = 0; i < size_t(n); ++i) ASSERT_EQ(copy.at(i), rounded(p.at(i), grad_type));
        }
}

TEST_P(LionKernel, EqualsItsFormulaInDoublePrecision) {
  for (DType grad_type : kTrainingTypes)
    for (DType copy_type : kTrainingTypes)
      for (int64_t n : {0, 1, 1003}) {
        Values grads = random_values(n, 4), moments = random_values(n, 2, 0.1);
        if (n > 2) grads[2] = moments[2] = 0;  // a parameter without any gradient so far only decays
        Guarded p(DType::fp32, {n}, random_values(n, 1)), m(DType::fp32, {n}, moments), copy(copy_type, {n});
        Guarded g(grad_type, {n}, grads);
        const Lion op{.param = p,
                      .m = m,
                      .copy = copy,
                      .grad = g,
                      .lr = 0.01f,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .weight_decay = 0.1f,
                      .grad_scale = 0.5f};
        Values wp, wm;
        for (size_t i = 0; i < size_t(n); ++i) {
          const double grad = 0.5 * g.at(i), b1 = double(op.beta1), b2 = double(op.beta2);
          const double c = b1 * m.at(i) + (1 - b1) * grad;
          wp.push_back(p.at(i) * (1 - double(op.lr) * double(op.weight_decay)) -
                       double(op.lr) * double((c > 0) - (c < 0)));
          wm.push_back(b2 * m.at(i) + (1 - b2) * grad);
        }
        TestStream stream;
        launch(op, stream);
        expect_near(p, wp, 1e-6, 1e-7, "param");
        expect_near(m, wm, 1e-6, 1e-7, "m");
        for (size_t i = 0; i < size_t(n); ++i) ASSERT_EQ(copy.at(i), rounded(p.at(i), copy_type));
      }
}

TEST_P(AdagradKernel, EqualsItsFormulaInDoublePrecision) {
  for (DType grad_type : kTrainingTypes)
    for (DType copy_type : kTrainingTypes)
      for (int64_t n : {0, 1, 1003}) {
        Guarded p(DType::fp32, {n}, random_values(n, 1)),
            sum(DType::fp32, {n}, positive(random_values(n, 2))), copy(copy_type, {n});
        Guarded g(grad_type, {n}, random_values(n, 4));
        const Adagrad op{.param = p,
                         .sum = sum,
                         .copy = copy,
                         .grad = g,
                         .lr = 0.1f,
                         .eps = 1e-3f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.5f};
        Values wp, ws;
        for (size_t i = 0; i < size_t(n); ++i) {
          const double grad = 0.5 * g.at(i) + double(op.weight_decay) * p.at(i);
          ws.push_back(sum.at(i) + grad * grad);
          wp.push_back(p.at(i) - double(op.lr) * grad / (std::sqrt(ws[i]) + double(op.eps)));
        }
        TestStream stream;
        launch(op, stream);
        expect_near(p, wp, 1e-6, 1e-7, "param");
        expect_near(sum, ws, 1e-6, 1e-7, "sum");
        for (size_t i = 0; i < size_t(n); ++i) ASSERT_EQ(copy.at(i), rounded(p.at(i), copy_type));
      }
}

TEST_P(LambMomentsKernel, EqualsItsFormulaInDoublePrecisionAndAddsToTheSums) {
  for (DType grad_type : kTrainingTypes)
    for (int64_t n : {0, 1, 255, 1003, 9000, 1100 * 1003}) {
      Guarded p(DType::fp32, {n}, random_values(n, 1)), m(DType::fp32, {n}, random_values(n, 2, 0.1));
      Guarded v(DType::fp32, {n}, positive(random_values(n, 3, 0.1))), g(grad_type, {n}, random_values(n, 4));
      Guarded squares(DType::fp64, {2}, {3, 5});
      const LambMoments op{.m = m,
                           .v = v,
                           .squares = squares,
                           .param = p,
                           .grad = g,
                           .eps = 1e-3f,
                           .weight_decay = 0.1f,
                           .grad_scale = 0.5f};
      Values wm, wv, sums{3, 5};
      for (size_t i = 0; i < size_t(n); ++i) {
        const double grad = 0.5 * g.at(i);
        wm.push_back(double(op.beta1) * m.at(i) + (1 - double(op.beta1)) * grad);
        wv.push_back(double(op.beta2) * v.at(i) + (1 - double(op.beta2)) * grad * grad);
        const double u = wm[i] / (std::sqrt(wv[i]) + double(op.eps)) + double(op.weight_decay) * p.at(i);
        sums[0] += p.at(i) * p.at(i), sums[1] += u * u;
      }
      TestStream stream;
      launch(op, stream);
      expect_near(m, wm, 1e-6, 1e-7, "m");
      expect_near(v, wv, 1e-6, 1e-7, "v");
      expect_near(squares, sums, 1e-6, 0, "squares");
    }
}

TEST_P(LambStepKernel, EqualsItsFormulaInDoublePrecision) {
  for (DType copy_type : kTrainingTypes)
    for (int64_t n : {0, 1, 1003}) {
      Guarded p(DType::fp32, {n}, random_values(n, 1)), m(DType::fp32, {n}, random_values(n, 2, 0.1));
      Guarded v(DType::fp32, {n}, positive(random_values(n, 3, 0.1))), copy(copy_type, {n});
      const LambStep op{
          .param = p, .copy = copy, .m = m, .v = v, .rate = 0.01f, .eps = 1e-3f, .weight_decay = 0.1f};
      Values want;
      for (size_t i = 0; i < size_t(n); ++i)
        want.push_back(p.at(i) - double(op.rate) * (m.at(i) / (std::sqrt(v.at(i)) + double(op.eps)) +
                                                    double(op.weight_decay) * p.at(i)));
      TestStream stream;
      launch(op, stream);
      expect_near(p, want, 1e-6, 1e-7, "param");
      for (size_t i = 0; i < size_t(n); ++i) ASSERT_EQ(copy.at(i), rounded(p.at(i), copy_type));
    }
}

}  // namespace
}  // namespace cleave::kernels
