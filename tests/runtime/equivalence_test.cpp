// Equal numbers for every partition: every stage, placement, overlap and bucket size against stage 0.
#include <gtest/gtest.h>

#include "tests/runtime/compare.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

class Equivalence : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Equivalence, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(Equivalence, WeightsAreBitIdenticalOverStagesOffloadOverlapAndBuckets) {
  const int ranks = GetParam(), steps = 20;
  const Training want = train_on(
      ranks, config_for(ranks), [] { return small_gpt(); }, steps);
  EXPECT_LT(want.steps.back().loss, want.steps.front().loss);
  Sampled sampled(ranks);
  for (int stage : {0, 1, 2, 3})
    for (bool offload : {false, true})
      for (bool overlap : {false, true})
        for (int64_t bucket : {int64_t{1}, int64_t{1000}, comm::Call::kWhole}) {
          if (!sampled.next()) continue;
          if (bucket == 1 && (offload || ranks > 3)) continue;  // one element at a time: skip the slow cases
          config::DsConfig c = config_for(ranks);
          c.zero.stage = stage, c.zero.overlap_comm = overlap;
          c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = bucket;
          if (offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
          const Training got = train_on(
              ranks, c, [] { return small_gpt(); }, bucket == 1 ? 3 : steps);
          Training expected = want;
          if (bucket == 1)
            expected = train_on(
                ranks, config_for(ranks), [] { return small_gpt(); }, 3);
          expect_same_bits(
              got, expected,
              fmt::format("stage {} offload {} overlap {} bucket {}", stage, offload, overlap, bucket));
        }
}

// Shards cut joint parameters of a layer anywhere.
TEST_P(Equivalence, LlamaAndQwen2AreBitIdenticalOverStagesOffloadAndOverlap) {
  const int ranks = GetParam(), steps = 10;
  for (const auto& model : {+[] { return small_llama(); }, +[] { return small_qwen2(); }}) {
    const Training want = train_on(ranks, config_for(ranks), model, steps);
    EXPECT_LT(want.steps.back().loss, want.steps.front().loss);
    for (int stage : {0, 1, 2, 3})
      for (bool offload : {false, true}) {
        config::DsConfig c = config_for(ranks);
        c.zero.stage = stage, c.zero.overlap_comm = offload;
        c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = 100;
        if (offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
        expect_same_bits(train_on(ranks, c, model, steps), want,
                         fmt::format("{} stage {} offload {}", model().name, stage, offload));
      }
  }
}

TEST_P(Equivalence, LlamaAccumulatesWithinEachOrderOfSums) {
  const int ranks = GetParam();
  std::vector<Training> runs;
  for (int stage : {0, 1, 2, 3}) {
    config::DsConfig c = config_for(ranks, 2, 3);
    c.zero.stage = stage;
    runs.push_back(train_on(
        ranks, c, [] { return small_llama(); }, 5));
  }
  expect_same_bits(runs[1], runs[0], "stage 1");
  expect_same_bits(runs[3], runs[2], "stage 3");
  EXPECT_LT(relative_distance(runs[2].weights, runs[0].weights), ranks == 1 ? 1e-30 : 1e-6);
}

TEST_P(Equivalence, SmallUnitsKeptWholeUnderStageThreeChangeNothing) {
  const int ranks = GetParam();
  const Training want = train_on(
      ranks, config_for(ranks), [] { return small_gpt(); }, 5);
  for (int64_t threshold : {int64_t{50}, int64_t{100'000}}) {
    config::DsConfig c = config_for(ranks);
    c.zero.stage = 3, c.zero.stage3_param_persistence_threshold = threshold;
    expect_same_bits(train_on(
                         ranks, c, [] { return small_gpt(); }, 5),
                     want, fmt::format("threshold {}", threshold));
  }
}

// With accumulation, stages 0 and 1 add over micro-batches first, 2 and 3 over ranks first.
TEST_P(Equivalence, AccumulationIsBitIdenticalWithinEachOrderOfSumsAndCloseAcross) {
  const int ranks = GetParam(), steps = 10;
  std::vector<Training> runs;
  for (int stage : {0, 1, 2, 3}) {
    config::DsConfig c = config_for(ranks, 2, 3);
    c.zero.stage = stage, c.zero.overlap_comm = stage == 3;
    runs.push_back(train_on(
        ranks, c, [] { return small_gpt(); }, steps));
  }
  expect_same_bits(runs[1], runs[0], "stage 1");
  expect_same_bits(runs[3], runs[2], "stage 3");
  EXPECT_LT(relative_distance(runs[2].weights, runs[0].weights), ranks == 1 ? 1e-30 : 1e-6);
  for (size_t s = 0; s < size_t(steps); ++s)
    EXPECT_NEAR(runs[2].steps[s].loss, runs[0].steps[s].loss, 1e-6 * runs[0].steps[s].loss);
}

TEST(TrainingRuns, AnyNumberOfRanksLearnsWhatOneRankLearnsFromTheSameGlobalBatch) {
  const int steps = 10;
  const Training want = train_on(
      1, config_for(1, 1, 12), [] { return small_gpt(); }, steps);
  for (int ranks : {2, 3, 4}) {
    config::DsConfig c = config_for(ranks, 1, 12 / ranks);
    c.zero.stage = 2;
    const Training got = train_on(
        ranks, c, [] { return small_gpt(); }, steps);
    for (size_t s = 0; s < size_t(steps); ++s)
      EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 1e-6 * want.steps[s].loss)
          << ranks << " ranks, step " << s;
  }
}

TEST(TrainingRuns, DropoutMasksDoNotDependOnTheNumberOfRanks) {
  const Training want = train_on(
      1, config_for(1, 4, 1), [] { return small_gpt(DType::fp32, 0.3f); }, 3);
  const Training plain = train_on(
      1, config_for(1, 4, 1), [] { return small_gpt(); }, 3);
  EXPECT_NE(want.steps[0].loss, plain.steps[0].loss);
  config::DsConfig c = config_for(4, 1, 1);
  c.zero.stage = 3;
  const Training got = train_on(
      4, c, [] { return small_gpt(DType::fp32, 0.3f); }, 3);
  for (size_t s = 0; s < 3; ++s)
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 1e-6 * want.steps[s].loss);
}

TEST(TrainingRuns, WorkerStreamsGiveTheBitsOfInlineOnes) {
  config::DsConfig c = config_for(2, 1, 2);
  c.zero.stage = 3, c.zero.overlap_comm = true;
  const Training want = train_on(
      2, c, [] { return small_gpt(); }, 4);
  const Training got = train_on(2, c, [] { return small_gpt(); }, 4, {.compute = Stream::Mode::worker});
  expect_same_bits(got, want, "worker streams");
}

TEST(TrainingRuns, OnTheCpuSayThatPassesAreNoGraphsWhenAsked) {
  comm::run_ranks(1, [](comm::Communicator& world) {
    config::DsConfig c = config_for(1);
    for (const auto& [use, line] :
         {std::pair{config::Switch::automatic, ""},
          {config::Switch::off, ""},
          {config::Switch::on, "CUDA graphs: not used: this rank computes on the CPU"}}) {
      c.cuda_graphs = use;
      EXPECT_EQ(runtime::Engine(c, small_gpt(), world, {}).notes().graphs, line);
    }
  });
}

TEST(TrainingRuns, PredividingAndSummingGradientsScaleAsDocumented) {
  const int ranks = 2;
  const Training want = train_on(
      ranks, config_for(ranks), [] { return small_gpt(); }, 3);
  config::DsConfig predivided = config_for(ranks);
  predivided.gradient_predivide_factor = 4;  // a power of two: exact
  expect_same_bits(train_on(
                       ranks, predivided, [] { return small_gpt(); }, 3),
                   want, "predivided by 4");
  config::DsConfig summed = config_for(ranks);
  summed.gradient_sum = true;
  const Training sum = train_on(
      ranks, summed, [] { return small_gpt(); }, 1);
  EXPECT_EQ(sum.steps[0].grad_norm, 2 * want.steps[0].grad_norm);
}

}  // namespace
}  // namespace cleave::testing
