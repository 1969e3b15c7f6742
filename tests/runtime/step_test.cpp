// Dependence of a training step on its place in the run, its micro-batches and its type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/runtime/compare.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// Weights move by the negative gradient.
config::DsConfig plain_descent(int64_t accumulation) {
  config::DsConfig c = config_for(1, 1, accumulation);
  c.optimizer.type = config::OptimizerType::sgd, c.optimizer.lr = 1, c.optimizer.weight_decay = 0;
  c.gradient_clipping = 0;
  return c;
}

Weights change(const Weights& after, const Weights& before) {
  Weights moved = after;
  for (auto& [name, values] : moved)
    for (size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
  return moved;
}

TEST(Step, DrawsAnotherDropoutMaskInEveryStep) {
  const auto losses = [](float dropout) {
    const auto alone = comm::self_communicator();
    config::DsConfig c = plain_descent(1);
    c.optimizer.lr = 0;  // weights do not change
    runtime::Engine engine(c, small_gpt(DType::fp32, dropout), *alone, {});
    Tokens tokens(1);
    std::vector<double> each;
    for (int step = 0; step < 4; ++step)
      each.push_back(engine.train_batch([&](int) { return tokens.at(0, 0); }).loss);
    return each;
  };
  const std::vector<double> got = losses(0.4f), still = losses(0);
  EXPECT_EQ(losses(0.4f), got) << "masks are functions of the step";
  for (size_t a = 0; a < got.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      EXPECT_NE(got[a], got[b]) << "steps " << a << " and " << b;
      EXPECT_EQ(still[a], still[b]) << "without dropout nothing changes";
    }
}

// The first `valid` targets of the sample that begins at `sample` count.
Batch with_targets(Tokens& tokens, int64_t sample, int64_t valid) {
  Batch b = tokens.at(0, sample);
  int32_t* targets = b.targets.as<int32_t>();
  for (int64_t i = valid; i < b.targets.numel(); ++i) targets[i] = -100;
  b.valid_targets = valid;
  return b;
}

// The mean over micro-batches of each one's mean over its own valid targets.
TEST(Step, WeighsEveryMicroBatchByItsOwnValidTargetsWhereMicroBatchesCountAlike) {
  const std::vector<int64_t> valid = {2, 7, 5};
  const auto alone = comm::self_communicator();
  const auto train = [&](const std::vector<int>& micros) {
    config::DsConfig c = plain_descent(int64_t(micros.size()));
    c.loss_average = config::LossAverage::micro_batches;
    runtime::Engine engine(c, small_gpt(), *alone, {});
    const Weights before = weights_of(engine);
    Tokens tokens(1);
    const runtime::StepResult r = engine.train_batch([&](int micro) {
      const int which = micros[size_t(micro)];
      return with_targets(tokens, which, valid[size_t(which)]);
    });
    return std::pair(change(weights_of(engine), before), r.loss);
  };
  const auto [together, loss] = train({0, 1, 2});
  Weights mean;
  double mean_loss = 0;
  for (const int micro : {0, 1, 2}) {
    const auto [one, one_loss] = train({micro});
    mean_loss += one_loss / 3;
    for (const auto& [name, values] : one) {
      mean[name].resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) mean[name][i] += values[i] / 3;
    }
  }
  EXPECT_LT(relative_distance(together, mean), 1e-6);
  EXPECT_NEAR(loss, mean_loss, 1e-7);
}

// A gradient in a 16-bit type equals that in fp32 except for rounding: every product and activation rounds to
// half a unit in the last place, and the small model has about forty of them in sequence. A loss scale that
// is left in, or removed twice, is a factor of 256 or more.
TEST(Step, MovesWeightsInSixteenBitsAsInFp32ButForRounding) {
  struct Case {
    config::Precision precision;
    DType type;
    double unit;
  };
  for (const Case& k : {Case{config::Precision::fp16, DType::fp16, 0x1p-11},
                        Case{config::Precision::bf16, DType::bf16, 0x1p-8}})
    for (const int stage : {0, 2, 3})
      for (const double clipping : {0.0, 0.5})
        for (const int64_t accumulation : {1, 3}) {
          const auto moved = [&](config::Precision precision, DType type) {
            Weights out;
            comm::run_ranks(2, [&](comm::Communicator& world) {
              config::DsConfig c = plain_descent(accumulation);
              c.train_batch_size *= 2, c.zero.stage = stage;
              c.gradient_clipping = clipping;
              c.precision = precision, c.grad_accum_dtype = config::Precision::fp32;
              c.fp16.enabled = precision == config::Precision::fp16, c.fp16.initial_scale_power = 8;
              runtime::Engine engine(c, small_gpt(type), world, {});
              const Weights before = weights_of(engine);
              Tokens tokens(1);
              const runtime::StepResult r = engine.train_batch(source(tokens, c, 0, world.rank(), 2));
              EXPECT_FALSE(r.skipped);
              const Weights mine = change(weights_of(engine), before);
              if (world.rank() == 0) out = mine;
            });
            return out;
          };
          EXPECT_LT(
              relative_distance(moved(k.precision, k.type), moved(config::Precision::fp32, DType::fp32)),
              40 * k.unit)
              << name_of(k.type) << " stage " << stage << " clipping " << clipping << " micro-batches "
              << accumulation;
        }
}

TEST(Step, MovesTheScheduleOnOnlyWhenItsUpdateIsApplied) {
  const auto alone = comm::self_communicator();
  config::DsConfig c = plain_descent(1);
  c.precision = config::Precision::fp16, c.fp16.enabled = true, c.zero.stage = 1, c.fp16.hysteresis = 1;
  c.scheduler.type = config::SchedulerType::warmup, c.scheduler.warmup_type = config::WarmupType::linear,
  c.scheduler.warmup_num_steps = 10;
  c.scheduler.warmup_max_lr = 0.01;
  const auto rates = [&](int scale_power, int64_t& skipped) {
    config::DsConfig mine = c;
    mine.fp16.initial_scale_power = scale_power;
    runtime::Engine engine(mine, small_gpt(DType::fp16), *alone, {});
    Tokens tokens(1);
    std::vector<double> applied;
    while (applied.size() < 6) {
      const runtime::StepResult r = engine.train_batch(source(tokens, mine, engine.step(), 0, 1));
      if (!r.skipped) applied.push_back(r.lr);
      skipped = r.skipped_total;
    }
    return applied;
  };
  int64_t none = 0, some = 0;
  const std::vector<double> want = rates(4, none), got = rates(30, some);
  EXPECT_EQ(none, 0);
  EXPECT_GT(some, 3);
  EXPECT_EQ(got, want);
}

// Growth of the loss scale counts from the last overflow, so a checkpoint has to keep its step.
TEST(Step, GrowsTheLossScaleAfterAResumeWhenItWouldHaveGrown) {
  const Scratch scratch;
  const auto alone = comm::self_communicator();
  config::DsConfig c = plain_descent(1);
  c.optimizer.lr = 1e-3, c.precision = config::Precision::fp16, c.fp16.enabled = true;
  c.zero.stage = 1, c.fp16.hysteresis = 1, c.fp16.initial_scale_power = 30, c.fp16.loss_scale_window = 4;
  Tokens tokens(1);
  const auto step = [&](runtime::Engine& engine) {
    return engine.train_batch(source(tokens, c, engine.step(), 0, 1));
  };
  runtime::Engine unbroken(c, small_gpt(DType::fp16), *alone, {});
  std::vector<double> scales;
  int64_t overflows = 0;
  while (step(unbroken).skipped) ++overflows;  // until a scale fits
  ASSERT_GT(overflows, 3);
  ASSERT_NE(overflows % 4, 3) << "counted from the start of the run the scale would grow at the same steps";
  unbroken.save_checkpoint(scratch.folder(), "after");
  for (int i = 0; i < 10; ++i) scales.push_back(step(unbroken).loss_scale);
  EXPECT_GT(*std::max_element(scales.begin(), scales.end()), scales.front()) << "the scale grows meanwhile";
  runtime::Engine resumed(c, small_gpt(DType::fp16), *alone, {});
  resumed.load_checkpoint(scratch.folder());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(step(resumed).loss_scale, scales[size_t(i)]) << "step " << i;
}

}  // namespace
}  // namespace cleave::testing
