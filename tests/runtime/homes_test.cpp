// Off-device weights and gradients: equal bits, and the planned memory.
#include <gtest/gtest.h>

#include "tests/runtime/cut_models.h"
#include "tests/runtime/homes.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

// Trains like train_on, and expects the plan to be the peak on every rank.
Training train_planned(int ranks, const config::DsConfig& c, const std::function<model::Model()>& model,
                       int steps) {
  Training run;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    runtime::Engine engine(c, model(), world, kWorkers);
    Training mine = train(engine, world, steps);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    EXPECT_EQ(engine.memory_planned(), engine.memory_live());
    if (world.rank() == 0) run = std::move(mine);
  });
  return run;
}

void expect_same_bits_in_every_home(int ranks, const config::DsConfig& plain,
                                    const std::function<model::Model()>& model, int steps) {
  static Sampled sampled;
  const Training want = train_on(ranks, plain, model, steps);
  for (const Homes& h : all_homes()) {
    if (!sampled.next()) continue;
    const config::DsConfig c = with(plain, h);
    expect_same_bits(train_planned(ranks, c, model, steps), want, text_of(h, c));
  }
}

class HomesOfTypes : public ::testing::TestWithParam<config::Precision> {};
INSTANTIATE_TEST_SUITE_P(Types, HomesOfTypes,
                         ::testing::Values(config::Precision::fp32, config::Precision::bf16,
                                           config::Precision::fp16));

TEST_P(HomesOfTypes, GiveTheSameBitsOverStagesRanksOverlapAndPrefetch) {
  for (int ranks : {1, 2, 3})
    for (int stage : {1, 2, 3})
      for (bool overlap : {false, true})
        for (int64_t prefetch : {0, 1000}) {
          if (stage != 3 && prefetch == 0) continue;
          config::DsConfig c = in_type(config_for(ranks, 2, 3), GetParam());
          c.zero.stage = stage, c.zero.overlap_comm = overlap;
          c.zero.stage3_prefetch_bucket_size = prefetch;
          c.zero.reduce_bucket_size = c.zero.allgather_bucket_size = 100;
          if (overlap) c.zero.stage3_max_live_parameters = 2500;
          expect_same_bits_in_every_home(
              ranks, c, [] { return small_gpt(type_of(GetParam())); }, 3);
        }
}

TEST_P(HomesOfTypes, GiveTheSameBitsWithWiderAndNarrowerTypesOnTheWay) {
  for (int ranks : {1, 2})
    for (int stage : {2, 3}) {
      config::DsConfig c = in_type(config_for(ranks, 1, 2), GetParam());
      c.zero.stage = stage, c.zero.overlap_comm = true;
      c.grad_accum_dtype = config::Precision::fp32, c.communication_data_type = config::Precision::bf16;
      expect_same_bits_in_every_home(
          ranks, c, [] { return small_gpt(type_of(GetParam())); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWithWholeSmallUnits) {
  for (int ranks : {1, 2})
    for (int64_t threshold : {50, 100'000}) {
      config::DsConfig c = config_for(ranks, 1, 2);
      c.zero.stage = 3, c.zero.overlap_comm = true, c.zero.stage3_param_persistence_threshold = threshold;
      expect_same_bits_in_every_home(
          ranks, c, [] { return small_llama(); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWithGroupsOfNearRanks) {
  for (const bool hybrid : {false, true})
    for (const auto wire : {config::Precision::fp32, config::Precision::bf16}) {
      config::DsConfig c = config_for(4, 1, 2);
      c.zero.stage = 3, c.zero.overlap_comm = true, c.communication_data_type = wire;
      (hybrid ? c.zero.mics_shard_size : c.zero.zero_hpz_partition_size) = 2;
      expect_same_bits_in_every_home(
          4, c, [] { return small_gpt(); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWithExactSumsAndWithRecomputation) {
  for (const bool exact : {false, true})
    for (const int64_t interval : {0, 1, 2}) {
      for (int ranks : {1, 3}) {
        config::DsConfig c = config_for(ranks, 1, 2);
        c.zero.stage = 3, c.zero.overlap_comm = true, c.exact_sums = exact;
        c.checkpointing.interval = interval, c.checkpointing.to_host = interval == 2;
        expect_same_bits_in_every_home(
            ranks, c, [] { return small_qwen2(); }, 3);
      }
    }
}

TEST(Homes, GiveTheSameBitsInPipelines) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1"})
    for (int stage : {2, 3}) {
      config::DsConfig c = config_for(2, 1, 4);
      c.pipeline.stages = 2, c.pipeline.schedule = schedule;
      c.pipeline.virtual_stages = std::string(schedule) == "interleaved" ? 2 : 1;
      c.zero.stage = stage, c.zero.overlap_comm = stage == 3;
      expect_same_bits_in_every_home(
          4, c, [] { return deep_gpt(false); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWithATensorAxis) {
  for (const Layout& l : {Layout{1, 1, 2, 3}, Layout{1, 2, 2, 3}, Layout{2, 1, 2, 2}, Layout{2, 2, 2, 3}}) {
    const config::DsConfig plain = config_of(l, 4);
    const Training want = train_on_all(l, plain, cut_llama(false), 3);
    for (const Homes& h : all_homes()) {
      const config::DsConfig c = with(plain, h);
      expect_same_bits(train_on_all(l, c, cut_llama(false), 3, kWorkers), want, l.text() + text_of(h, c));
    }
  }
}

// A norm limit that is never reached: the update waits for the norm without any other change.
TEST(Homes, UpdateWhileTheBackwardRunsWithTheBitsOfUpdatingAfterIt) {
  Sampled sampled;
  for (const auto precision : {config::Precision::fp32, config::Precision::bf16})
    for (int ranks : {1, 2})
      for (int stage : {0, 1, 2, 3})
        for (bool overlap : {false, true}) {
          config::DsConfig c = in_type(config_for(ranks, 2, 2), precision);
          c.zero.stage = stage, c.zero.overlap_comm = overlap, c.check_grad_overflow = false;
          c.gradient_clipping = 0;
          config::DsConfig waits = c;
          waits.gradient_clipping = 1e30;
          const auto model = [&] { return small_gpt(type_of(precision)); };
          const Training want = train_on(ranks, waits, model, 3);
          expect_same_bits(train_on(ranks, c, model, 3, kWorkers), want, "on the device");
          const std::vector<Homes> homes = all_homes();
          for (const size_t h : {1u, 2u, 5u, 6u, 7u, 8u, 9u})
            if (sampled.next())
              expect_same_bits(train_planned(ranks, with(c, homes[h]), model, 3), want, text_of(homes[h], c));
          sampled.next();  // seven homes
        }
}

TEST(Homes, UpdateWhileTheBackwardRunsInPipelinesWithTiedUnitsAndCutLayers) {
  Sampled sampled;
  for (const char* schedule : {"1f1b", "zb-h1"})
    for (const bool tied : {false, true})
      for (const Layout& l : {Layout{2, 1, 1, 2}, Layout{2, 2, 1, 3}, Layout{2, 1, 2, 1}, Layout{1, 2, 2, 2},
                              Layout{2, 2, 2, 1}}) {
        config::DsConfig c = config_of(l, 4);
        c.pipeline.schedule = schedule, c.zero.overlap_comm = true, c.gradient_clipping = 0;
        config::DsConfig waits = c;
        waits.gradient_clipping = 1e30;
        const Training want = train_on_all(l, waits, cut_gpt(tied), 3);
        for (const Homes& h : {Homes{}, all_homes()[2], all_homes()[6], all_homes()[8], all_homes()[9]})
          if (sampled.next())
            expect_same_bits(train_on_all(l, with(c, h), cut_gpt(tied), 3, kWorkers), want,
                             l.text() + text_of(h, c) + schedule);
      }
}

TEST(Homes, SkipAnOverflowingStepAndEvaluateAlike) {
  for (const Homes& h : all_homes())
    comm::run_ranks(2, [&](comm::Communicator& world) {
      config::DsConfig c = in_type(config_for(2), config::Precision::fp16);
      c.zero.stage = 3, c.zero.overlap_comm = true, c.fp16.initial_scale_power = 30;
      runtime::Engine plain(c, small_gpt(DType::fp16), world, {}),
          there(with(c, h), small_gpt(DType::fp16), world, kWorkers);
      Tokens tokens(1);
      for (int step = 0; step < 3; ++step) {
        const BatchSource data = source(tokens, c, step, world.rank(), 2);
        const runtime::StepResult want = plain.train_batch(data), got = there.train_batch(data);
        EXPECT_EQ(got.skipped, want.skipped);
        EXPECT_EQ(there.evaluate(data, 2).loss, plain.evaluate(data, 2).loss);
        EXPECT_EQ(there.predict(data(0)), plain.predict(data(0)));
      }
      EXPECT_EQ(weights_of(there), weights_of(plain));
    });
}

}  // namespace
}  // namespace cleave::testing
