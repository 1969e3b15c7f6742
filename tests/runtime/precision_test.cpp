// 16-bit working copies with fp32 masters, and gradient overflows.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/digest.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

config::DsConfig fp16_config(int ranks, int stage, double scale = 0) {
  config::DsConfig c = config_for(ranks);
  c.precision = config::Precision::fp16, c.fp16.enabled = true, c.fp16.loss_scale = scale;
  c.fp16.initial_scale_power = 12;
  c.zero.stage = stage;
  return c;
}

class Precisions : public ::testing::TestWithParam<int> {};  // ZeRO stage
INSTANTIATE_TEST_SUITE_P(Stages, Precisions, ::testing::Values(0, 1, 2, 3));

TEST_P(Precisions, HalfTypesFollowFp32WithinTheirRounding) {
  for (const auto& model : {+[](DType t) { return small_gpt(t); }, +[](DType t) { return small_llama(t); }}) {
    config::DsConfig c = config_for(2);
    auto train_as = [&](const config::DsConfig& config, DType type) {
      return train_on(
          2, config, [&] { return model(type); }, 10);
    };
    const Training want = train_as(c, DType::fp32);
    c.zero.stage = GetParam();
    c.precision = config::Precision::bf16;
    const Training bf = train_as(c, DType::bf16);
    const Training fp = train_as(fp16_config(2, GetParam()), DType::fp16);
    EXPECT_LT(bf.steps.back().loss, bf.steps.front().loss);
    for (size_t s = 0; s < 10; ++s) {
      EXPECT_NEAR(bf.steps[s].loss, want.steps[s].loss, 0.02 * want.steps[s].loss);   // 8 bits of mantissa
      EXPECT_NEAR(fp.steps[s].loss, want.steps[s].loss, 0.004 * want.steps[s].loss);  // 11 bits
    }
  }
}

// Rows of features that only rank 1 makes too large for fp16.
Batch features(std::vector<float>& x, std::vector<int32_t>& y, float size) {
  x.resize(4), y = {1};
  for (size_t i = 0; i < x.size(); ++i) x[i] = size * float(i + 1);
  return {.input = Tensor(x.data(), DType::fp32, {1, 4}, MemoryKind::host),
          .targets = Tensor(y.data(), DType::int32, {1}, MemoryKind::host),
          .valid_targets = 1};
}

TEST_P(Precisions, OverflowOnOneRankSkipsTheStepOnAllAndChangesNoState) {
  const Scratch scratch;
  comm::run_ranks(3, [&](comm::Communicator& world) {
    const config::DsConfig c = fp16_config(3, GetParam());
    runtime::Engine engine(c, model::make_mlp({{4, 5, 3}}, DType::fp16), world, {});
    std::vector<float> x;
    std::vector<int32_t> y;
    engine.train_batch([&](int) { return features(x, y, 0.1f); });
    engine.save_checkpoint(scratch.folder(), "before");
    const runtime::StepResult bad =
        engine.train_batch([&](int) { return features(x, y, world.rank() == 1 ? 3e4f : 0.1f); });
    EXPECT_TRUE(bad.skipped);
    EXPECT_EQ(bad.skipped_total, 1);
    engine.save_checkpoint(scratch.folder(), "after");
    const auto state = [&](const char* tag) {
      return checkpoint::digests(checkpoint::CheckpointReader(scratch.folder(), tag), 1);
    };
    EXPECT_EQ(state("before"), state("after"));
    EXPECT_FALSE(engine.train_batch([&](int) { return features(x, y, 0.1f); }).skipped);
  });
}

TEST_P(Precisions, AnEverOverflowingRunStopsAtTheMinimumScale) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = fp16_config(2, GetParam());
    c.fp16.initial_scale_power = 30, c.fp16.min_loss_scale = double(1 << 29), c.fp16.hysteresis = 1;
    runtime::Engine engine(c, small_gpt(DType::fp16), world, {});
    Tokens tokens(1);
    const Weights before = weights_of(engine);
    const runtime::StepResult first = engine.train_batch(source(tokens, c, 0, world.rank(), 2));
    EXPECT_TRUE(first.skipped);
    EXPECT_EQ(weights_of(engine), before);
    expect_error(Exit::training, {"minimum"}, [&] {
      for (int step = 1; step < 10; ++step) {
        const runtime::StepResult r = engine.train_batch(source(tokens, c, step, world.rank(), 2));
        ASSERT_TRUE(r.skipped);
      }
    });
  });
}

// Starts at a scale that overflows until it has dropped; the skipped steps determine all later losses.
TEST(LossScale, SkipsTheSameStepsAtEveryStage) {
  const auto trained = [](int stage, bool deepspeed) {
    config::DsConfig c = fp16_config(2, stage);
    c.fp16.initial_scale_power = 30, c.fp16.hysteresis = 2, c.deepspeed_stage0_loss_scale = deepspeed;
    return train_on(
        2, c, [] { return small_gpt(DType::fp16); }, 24);
  };
  const auto differs = [](const Training& a, const Training& b) {
    for (size_t s = 0; s < a.steps.size(); ++s)
      if (a.steps[s].skipped != b.steps[s].skipped || a.steps[s].loss_scale != b.steps[s].loss_scale ||
          a.steps[s].loss != b.steps[s].loss)
        return true;
    return false;
  };
  const Training want = trained(1, false);
  EXPECT_GT(want.steps.back().skipped_total, 1);
  EXPECT_LT(want.steps.back().skipped_total, 24);
  for (const int stage : {0, 2, 3}) EXPECT_FALSE(differs(trained(stage, false), want)) << "stage " << stage;
  EXPECT_TRUE(differs(trained(0, true), want));
  for (const int stage : {2, 3}) EXPECT_FALSE(differs(trained(stage, true), want)) << "stage " << stage;
}

TEST(NonFinite, ANonFiniteLossInFp32StopsTheRunNamingTheStep) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(1);
    c.optimizer.lr = 1e30, c.gradient_clipping = 0;
    runtime::Engine engine(c, small_gpt(), world, {});
    Tokens tokens(1);
    expect_error(Exit::training, {"step "}, [&] {
      for (int step = 0; step < 10; ++step) engine.train_batch(source(tokens, c, step, 0, 1));
    });
  });
}

}  // namespace
}  // namespace cleave::testing
