#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config_schema/ds_config.h"
#include "core/philox.h"

namespace cleave::optim {
namespace {

constexpr int64_t kNumel = 100;

struct Operands {
  std::vector<float> param, grad, s0, s1;
  std::vector<uint16_t> copy;

  explicit Operands(uint64_t seed) : s0(kNumel), s1(kNumel), copy(kNumel) {
    const Philox random{seed, 0};
    for (int64_t i = 0; i < kNumel; ++i) {
      param.push_back(float(random.normal(uint64_t(2 * i))));
      grad.push_back(float(random.normal(uint64_t(2 * i + 1))));
    }
  }

  UpdateSlice slice(bool decay) {
    const auto view = [](std::vector<float>& v) { return Tensor(v.data(), DType::fp32, {kNumel}); };
    return {view(param), view(grad), Tensor(copy.data(), DType::bf16, {kNumel}), {view(s0), view(s1)}, decay};
  }
};

// Adam in double precision, directly from the papers.
struct DoubleAdam {
  double lr, b1, b2, eps, wd;
  bool decoupled, correct;
  void step(double& p, double& m, double& v, double g, int t) const {
    if (!decoupled) g += wd * p;
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    const double c1 = correct ? 1 - std::pow(b1, t) : 1, c2 = correct ? 1 - std::pow(b2, t) : 1;
    p -= lr * (m / c1 / (std::sqrt(v / c2) + eps) + (decoupled ? wd * p : 0));
  }
};

void expect_adam(const config::OptimizerConfig& config, bool decay, bool decoupled,
                 const StepArgs& changed = {}) {
  const auto optimizer = make_optimizer(config);
  Operands x(7);
  std::vector<double> p(x.param.begin(), x.param.end()), m(kNumel), v(kNumel);
  Stream stream;
  for (int t = 1; t <= 5; ++t) {
    StepArgs args = changed;
    args.rates.lr = 0.01 * t, args.grad_scale = 0.5, args.step = t;
    optimizer->update(x.slice(decay), args, stream);
    const DoubleAdam oracle{
        args.rates.lr,
        changed.rates.momentum >= 0 ? changed.rates.momentum : config.beta1,
        changed.rates.beta2 >= 0 ? changed.rates.beta2 : config.beta2,
        config.eps,
        decay ? (changed.rates.weight_decay >= 0 ? changed.rates.weight_decay : config.weight_decay) : 0,
        decoupled,
        config.bias_correction};
    for (int64_t i = 0; i < kNumel; ++i) oracle.step(p[i], m[i], v[i], 0.5 * x.grad[i], t);
  }
  for (int64_t i = 0; i < kNumel; ++i) {
    ASSERT_NEAR(x.param[i], p[i], 2e-6 * (1 + std::fabs(p[i]))) << i;
    ASSERT_EQ(x.copy[i], from_float<bf16>(x.param[i]).bits) << i;
  }
}

config::OptimizerConfig config_of(config::OptimizerType type) {
  config::OptimizerConfig c;
  c.type = type, c.weight_decay = 0.3, c.beta1 = 0.8, c.beta2 = 0.95;
  return c;
}

TEST(AdamOptimizer, DecouplesDecayUnderBothNames) {
  expect_adam(config_of(config::OptimizerType::adamw), true, true);
  expect_adam(config_of(config::OptimizerType::adam), true, true);
}

TEST(AdamOptimizer, DecaysThroughTheGradientOnRequest) {
  config::OptimizerConfig c = config_of(config::OptimizerType::adam);
  c.decoupled = false;
  expect_adam(c, true, false);
}

TEST(AdamOptimizer, DoesNotDecaySlicesWithoutDecay) {
  expect_adam(config_of(config::OptimizerType::adamw), false, true);
}

TEST(AdamOptimizer, UsesTheBetasOfASchedule) {
  StepArgs args;
  args.rates.momentum = 0.5, args.rates.beta2 = 0.99;
  expect_adam(config_of(config::OptimizerType::adamw), true, true, args);
}

TEST(AdamOptimizer, UsesTheWeightDecayOfAStep) {
  StepArgs args;
  args.rates.weight_decay = 0.7;
  expect_adam(config_of(config::OptimizerType::adamw), true, true, args);
  expect_adam(config_of(config::OptimizerType::adamw), false, true, args);
}

TEST(AdamOptimizer, WorksWithoutBiasCorrection) {
  config::OptimizerConfig c = config_of(config::OptimizerType::adamw);
  c.bias_correction = false;
  expect_adam(c, true, true);
}

TEST(AdamOptimizer, NamesItsStatesLikeCheckpoints) {
  EXPECT_EQ(make_optimizer(config_of(config::OptimizerType::adamw))->states(),
            (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

void expect_sgd(double momentum, double dampening, bool nesterov) {
  config::OptimizerConfig c = config_of(config::OptimizerType::sgd);
  c.momentum = momentum, c.dampening = dampening, c.nesterov = nesterov;
  const auto optimizer = make_optimizer(c);
  EXPECT_EQ(optimizer->states().size(), momentum != 0 ? 1u : 0u);
  Operands x(8);
  std::vector<double> p(x.param.begin(), x.param.end()), buffer(kNumel);
  Stream stream;
  for (int t = 1; t <= 4; ++t) {
    UpdateSlice slice = x.slice(true);
    if (momentum == 0) slice.state = {};
    optimizer->update(slice, {.rates = {.lr = 0.1}, .grad_scale = 2, .step = t}, stream);
    for (int64_t i = 0; i < kNumel; ++i) {
      double g = 2.0 * x.grad[i] + c.weight_decay * p[i];
      if (momentum != 0) {
        buffer[i] = t == 1 ? g : momentum * buffer[i] + (1 - dampening) * g;
        g = nesterov ? g + momentum * buffer[i] : buffer[i];
      }
      p[i] -= 0.1 * g;
    }
  }
  for (int64_t i = 0; i < kNumel; ++i) ASSERT_NEAR(x.param[i], p[i], 2e-6 * (1 + std::fabs(p[i]))) << i;
}

TEST(SgdOptimizer, FollowsPyTorchsRule) {
  expect_sgd(0, 0, false);
  expect_sgd(0.9, 0, false);
  expect_sgd(0.9, 0.3, false);
  expect_sgd(0.9, 0, true);
}

TEST(LionOptimizer, FollowsThePapersRuleAndTheBetasOfASchedule) {
  const config::OptimizerConfig c = config_of(config::OptimizerType::lion);
  const auto optimizer = make_optimizer(c);
  EXPECT_EQ(optimizer->states(), std::vector<std::string>{"exp_avg"});
  for (const bool decay : {false, true}) {
    Operands x(9);
    std::vector<double> p(x.param.begin(), x.param.end()), m(kNumel);
    Stream stream;
    for (int t = 1; t <= 5; ++t) {
      const double b1 = t < 4 ? c.beta1 : 0.6;
      optimizer->update(x.slice(decay),
                        {.rates = {.lr = 0.1, .momentum = t < 4 ? -1 : 0.6}, .grad_scale = 2, .step = t},
                        stream);
      for (size_t i = 0; i < size_t(kNumel); ++i) {
        const double g = 2.0 * x.grad[i], direction = b1 * m[i] + (1 - b1) * g;
        p[i] = p[i] * (1 - 0.1 * (decay ? c.weight_decay : 0)) - (direction > 0 ? 0.1 : -0.1);
        m[i] = c.beta2 * m[i] + (1 - c.beta2) * g;
      }
    }
    for (size_t i = 0; i < size_t(kNumel); ++i)
      ASSERT_NEAR(x.param[i], p[i], 2e-6 * (1 + std::fabs(p[i]))) << i;
  }
}

TEST(AdagradOptimizer, FollowsPyTorchsRule) {
  config::OptimizerConfig c = config_of(config::OptimizerType::adagrad);
  c.eps = 1e-10, c.lr_decay = 0.25;
  const auto optimizer = make_optimizer(c);
  EXPECT_EQ(optimizer->states(), std::vector<std::string>{"sum"});
  Operands x(10);
  std::vector<double> p(x.param.begin(), x.param.end()), sum(kNumel);
  Stream stream;
  for (int t = 1; t <= 5; ++t) {
    optimizer->update(x.slice(true), {.rates = {.lr = 0.1}, .grad_scale = 0.5, .step = t}, stream);
    for (size_t i = 0; i < size_t(kNumel); ++i) {
      const double g = 0.5 * x.grad[i] + c.weight_decay * p[i];
      sum[i] += g * g;
      p[i] -= 0.1 / (1 + (t - 1) * 0.25) * g / (std::sqrt(sum[i]) + c.eps);
    }
  }
  for (size_t i = 0; i < size_t(kNumel); ++i)
    ASSERT_NEAR(x.param[i], p[i], 2e-6 * (1 + std::fabs(p[i]))) << i;
}

// Two parameters of one slice each, with and without decay; a third one with zero values moves at a ratio
// of 1.
TEST(LambOptimizer, FollowsItsRuleInDoublePrecisionOverTwentySteps) {
  for (const bool bias : {true, false})
    for (const double most : {10.0, 0.5}) {
      config::OptimizerConfig c = config_of(config::OptimizerType::lamb);
      c.bias_correction = bias, c.max_coeff = most, c.min_coeff = 0.05;
      const auto optimizer = make_optimizer(c);
      EXPECT_EQ(optimizer->states(), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
      EXPECT_TRUE(optimizer->prepares());
      for (const bool decay : {true, false})
        for (const double scale : {1.0, 0.0}) {
          Operands x(10);
          for (float& p : x.param) p *= float(scale);
          std::vector<double> p(x.param.begin(), x.param.end()), m(kNumel), v(kNumel);
          Stream stream;
          for (int t = 1; t <= 20; ++t) {
            double squares[2] = {0, 0};
            const StepArgs args{.rates = {.lr = 0.02}, .grad_scale = 0.5, .step = t};
            UpdateSlice slice = x.slice(decay);
            optimizer->prepare(slice, args, Tensor(squares, DType::fp64, {2}, MemoryKind::host), stream);
            slice.squares = {squares[0], squares[1]};
            optimizer->update(slice, args, stream);

            std::vector<double> u(kNumel);
            double pp = 0, uu = 0;
            for (size_t i = 0; i < size_t(kNumel); ++i) {
              const double g = 0.5 * x.grad[i];
              m[i] = c.beta1 * m[i] + (1 - c.beta1) * g, v[i] = c.beta2 * v[i] + (1 - c.beta2) * g * g;
              u[i] = m[i] / (std::sqrt(v[i]) + c.eps) + (decay ? c.weight_decay : 0) * p[i];
              pp += p[i] * p[i], uu += u[i] * u[i];
            }
            double trust = 1;
            if (pp > 0 && uu > 0) trust = std::clamp(std::sqrt(pp / uu), c.min_coeff, most);
            const double factor = bias ? std::sqrt(1 - std::pow(c.beta2, t)) / (1 - std::pow(c.beta1, t)) : 1;
            for (size_t i = 0; i < size_t(kNumel); ++i) p[i] -= 0.02 * factor * trust * u[i];
          }
          for (size_t i = 0; i < size_t(kNumel); ++i)
            ASSERT_NEAR(x.param[i], p[i], 2e-6 * (1 + std::fabs(p[i]))) << i;
        }
    }
}

}  // namespace
}  // namespace cleave::optim
