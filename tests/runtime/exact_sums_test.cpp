// With exact sums the weights depend only on the global batch.
#include "tests/runtime/compare.h"
#include "tests/sampled.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

constexpr int kExactSteps = 5, kMicros = 12;  // micro-batches per step over all ranks

struct ExactLayout {
  int pipe, data;
  const char* schedule = "1f1b";
  int zero = 0;
  bool offload = false;
};
std::string text_of_exact(const ExactLayout& l) {
  return fmt::format("pipe {} data {} {} zero {} offload {}", l.pipe, l.data, l.schedule, l.zero, l.offload);
}

config::DsConfig exact(const ExactLayout& l, config::Precision precision = config::Precision::fp32) {
  config::DsConfig c = config_for(l.data, 1, kMicros / l.data);
  c.exact_sums = true;
  c.zero.stage = l.zero, c.zero.overlap_comm = l.zero >= 2;
  c.zero.reduce_bucket_size = 1000;
  if (l.offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
  c.pipeline.stages = l.pipe, c.pipeline.schedule = l.schedule;
  c.pipeline.virtual_stages = std::string(l.schedule) == "interleaved" ? 2 : 1;
  c.precision = precision;
  c.fp16.enabled = precision == config::Precision::fp16, c.fp16.initial_scale_power = 10;
  return c;
}

std::vector<ExactLayout> exact_layouts() {
  std::vector<ExactLayout> all;
  for (int data : {1, 2, 3, 4, 6})
    for (int zero : {0, 1, 2, 3}) all.push_back({1, data, "1f1b", zero, zero == data % 4});
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (auto [pipe, data] : {std::pair{2, 1}, {2, 3}, {3, 2}, {4, 1}})
      for (int zero : {0, 1, 2, 3}) all.push_back({pipe, data, schedule, zero, zero == 2});
  return all;
}

// Tied and untied: the two gradients of the tied matrix are rounded separately, so even their order has no
// effect.
TEST(ExactSums, GiveTheBitsOfOneRankForEveryLayout) {
  Sampled sampled;
  for (const bool tied : {false, true}) {
    const auto model = [&] { return deep_gpt(tied, DType::fp32, 0.2f); };
    const Training want = train_on(1, exact({1, 1}), model, kExactSteps);
    EXPECT_LT(want.steps.back().loss, want.steps.front().loss);
    for (const ExactLayout& l : exact_layouts())
      if (sampled.next())
        expect_same_bits(train_on(l.pipe * l.data, exact(l), model, kExactSteps), want,
                         text_of_exact(l) + (tied ? " tied" : ""));
  }
}

TEST(ExactSums, GiveTheBitsOfOneRankInSixteenBitsForEveryLayout) {
  for (const config::Precision precision : {config::Precision::bf16, config::Precision::fp16}) {
    const DType type = precision == config::Precision::bf16 ? DType::bf16 : DType::fp16;
    const auto model = [&] { return deep_gpt(true, type); };
    const Training want = train_on(1, exact({1, 1}, precision), model, 3);
    EXPECT_FALSE(want.steps.back().skipped);
    for (const ExactLayout& l :
         {ExactLayout{1, 3, "1f1b", 2}, ExactLayout{1, 4, "1f1b", 0, true}, ExactLayout{3, 1, "gpipe", 1},
          ExactLayout{3, 2, "interleaved", 3}, ExactLayout{2, 2, "1f1b", 3}})
      expect_same_bits(train_on(l.pipe * l.data, exact(l, precision), model, 3), want, text_of_exact(l));
  }
}

TEST(ExactSums, GiveTheBitsOfOneRankWithGroupsOfNearRanks) {
  const auto model = [] { return small_gpt(); };
  const Training want = train_on(1, exact({1, 1}), model, kExactSteps);
  for (const bool hybrid : {false, true}) {
    config::DsConfig c = exact({1, 6, "1f1b", 3});
    (hybrid ? c.zero.mics_shard_size : c.zero.zero_hpz_partition_size) = 3;
    expect_same_bits(train_on(6, c, model, kExactSteps), want, hybrid ? "hybrid" : "nested");
    c.checkpointing.interval = 2;
    expect_same_bits(train_on(6, c, model, kExactSteps), want, "recomputed");
  }
}

TEST(ExactSums, AndRecomputationAndWorkerStreamsGiveTheSameBits) {
  const auto model = [] { return small_llama(); };
  const Training want = train_on(1, exact({1, 1}), model, kExactSteps);
  for (int64_t interval : {int64_t{1}, int64_t{3}}) {
    config::DsConfig c = exact({2, 3, "1f1b", 3});
    c.checkpointing.interval = interval;
    expect_same_bits(train_on(6, c, model, kExactSteps, {.compute = Stream::Mode::worker}), want, "worker");
  }
}

// Rounding to 2^-54 changes a gradient of ordinary size less than fp32 rounding does.
TEST(ExactSums, AreCloseToPlainOnes) {
  config::DsConfig plain = exact({1, 2, "1f1b", 2});
  plain.exact_sums = false;
  const Training want = train_on(
      2, plain, [] { return small_gpt(); }, kExactSteps);
  const Training got = train_on(
      2, exact({1, 2, "1f1b", 2}), [] { return small_gpt(); }, kExactSteps);
  EXPECT_LT(relative_distance(got.weights, want.weights), 1e-6);
  for (size_t s = 0; s < size_t(kExactSteps); ++s) {
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 1e-6 * want.steps[s].loss);
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 1e-6 * want.steps[s].grad_norm);
  }
}

// The grid setting takes effect: a coarse grid changes the result, equally in all layouts.
TEST(ExactSums, DifferOnACoarseGridAndAgreeOverLayouts) {
  const auto model = [] { return small_gpt(); };
  config::DsConfig one = exact({1, 1}), six = exact({2, 3, "zb-h1", 2});
  const Training fine = train_on(1, one, model, 2);
  one.exact_sums_grid = six.exact_sums_grid = 20;
  const Training coarse = train_on(1, one, model, 2);
  EXPECT_NE(coarse.weights, fine.weights);
  expect_same_bits(train_on(6, six, model, 2), coarse, "grid 20");
}

TEST(ExactSums, SkipOnOverflowOnEveryRankAndReportADivergedRun) {
  comm::run_ranks(4, [&](comm::Communicator& world) {
    config::DsConfig c = exact({2, 2, "1f1b", 2}, config::Precision::fp16);
    runtime::Engine engine(c, deep_gpt(true, DType::fp16), world, {});
    const Weights before = weights_of(engine);
    engine.set_parameters([&](const ParamSpec& p) {
      std::vector<float> v = before.at(p.name);
      if (p.name == "h.4.mlp.c_fc.weight") std::fill(v.begin(), v.end(), 60000.0f);
      return v;
    });
    Tokens tokens(1);
    const int place = engine.mesh().place(world.rank()).data;
    const runtime::StepResult r = engine.train_batch(source(tokens, c, 0, place, 2));
    EXPECT_TRUE(r.skipped);
    EXPECT_TRUE(std::isnan(r.grad_norm));
  });
  // Finite gradients that exceed the range of the grid, in fp32.
  config::DsConfig c = exact({1, 2});
  c.exact_sums_grid = 100;
  try {
    train_on(
        2, c, [] { return small_gpt(); }, 1);
    ADD_FAILURE() << "gradients near 1 fit below 2^-38";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::training);
    EXPECT_TRUE(std::string(e.what()).find("cleave.exact_sums_grid: ") == 0) << e.what();
  }
}

TEST(ExactSums, TakeEightBytesAParameterAndThePlanIsThePeak) {
  for (const int stage : {0, 1, 2, 3})
    comm::run_ranks(3, [&](comm::Communicator& world) {
      const config::DsConfig c = exact({1, 3, "1f1b", stage, stage == 1});
      runtime::Engine engine(c, small_gpt(), world, {});
      int64_t numel = 0;
      for (const UnitSpec& u : engine.model().units())
        numel += zero::FlatLayout(u, stage == 0 ? 1 : 3).numel();
      EXPECT_EQ(engine.memory_live().total(Category::gradients), 8 * numel / (stage >= 2 ? 3 : 1));
      Tokens tokens(1);
      engine.train_batch(source(tokens, c, 0, world.rank(), 3));
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
      EXPECT_EQ(engine.memory_planned(), engine.memory_live());
    });
}

}  // namespace
}  // namespace cleave::testing
