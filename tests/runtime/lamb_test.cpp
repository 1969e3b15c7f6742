// LAMB uses norms over whole parameters: the weights equal those of one rank for every cut by slices, layers
// and homes.
#include <gtest/gtest.h>

#include "tests/runtime/compare.h"
#include "tests/runtime/cut_models.h"
#include "tests/runtime/homes.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

// Without limits on the ratio, which would hide a wrong norm.
config::DsConfig lamb(config::DsConfig c) {
  c.optimizer.min_coeff = 0, c.optimizer.max_coeff = 1e6;
  c.optimizer.type = config::OptimizerType::lamb, c.optimizer.weight_decay = 0.1, c.optimizer.lr = 0.01;
  return c;
}

void expect_close(const Training& got, const Training& want, const std::string& what) {
  EXPECT_LT(relative_distance(got.weights, want.weights), 1e-6) << what;
}

TEST(Lamb, GivesOneRanksWeightsAtEveryStageAndHome) {
  Sampled sampled;
  config::DsConfig one = lamb(config_for(1, 6, 1));
  const Training want = train_on(
      1, one, [] { return small_gpt(); }, 5);
  for (int ranks : {1, 2, 3})
    for (int stage : {0, 1, 2, 3}) {
      config::DsConfig c = lamb(config_for(ranks, 6 / ranks, 1));
      c.zero.stage = stage, c.zero.overlap_comm = stage != 1;
      const Training plain = train_on(
          ranks, c, [] { return small_gpt(); }, 5);
      expect_close(plain, want, fmt::format("{} ranks, stage {}", ranks, stage));
      for (const Homes& h : all_homes())
        if (sampled.next())
          expect_close(train_on(
                           ranks, with(c, h), [] { return small_gpt(); }, 5, kWorkers),
                       want, text_of(h, with(c, h)));
      config::DsConfig clips_never = c;
      clips_never.gradient_clipping = 0, one.gradient_clipping = 0;
      expect_close(train_on(
                       ranks, clips_never, [] { return small_gpt(); }, 5),
                   train_on(
                       1, one, [] { return small_gpt(); }, 5),
                   "without clipping");
    }
}

TEST(Lamb, GivesOneRanksWeightsInEveryLayoutWithTiedUnitsAndAVocabularyThatDoesNotDivide) {
  for (const bool tied : {false, true}) {
    for (const Layout& l : {Layout{2, 1, 1, 1}, Layout{1, 1, 2, 0}, Layout{1, 2, 2, 3}, Layout{2, 2, 2, 2},
                            Layout{1, 1, 4, 1}}) {
      const Layout uncut{1, l.data, 1, 0};
      const Training want = train_on_all(uncut, lamb(config_of(uncut, 4)), cut_gpt(tied), 4);
      const config::DsConfig c = lamb(config_of(l, 4));
      expect_close(train_on_all(l, c, cut_gpt(tied), 4), want, l.text());
    }
  }
}

TEST(Lamb, GivesOneRanksWeightsAmongNearRanksWithExactSumsAndWithShareOfTheStateOnDisk) {
  const auto model = [] { return small_llama(); };
  const Training want = train_on(1, lamb(config_for(1, 4, 1)), model, 4);
  for (const bool hybrid : {false, true}) {
    config::DsConfig c = lamb(config_for(4, 1, 1));
    c.zero.stage = 3;
    (hybrid ? c.zero.mics_shard_size : c.zero.zero_hpz_partition_size) = 2;
    expect_close(train_on(4, c, model, 4), want, "near ranks");
  }
  for (const double ratio : {0.3, 1.0})
    for (const bool streamed : {false, true}) {
      config::DsConfig c = with(lamb(config_for(2, 2, 1)),
                                Homes{.optimizer = true, .state_on_disk = true, .streamed = streamed});
      c.zero.stage = 2, c.zero.offload_optimizer.ratio = ratio;
      expect_close(train_on(2, c, model, 4), want, fmt::format("ratio {} streamed {}", ratio, streamed));
    }
  config::DsConfig exact = lamb(config_for(2, 2, 1));
  exact.exact_sums = true, exact.zero.stage = 2;
  expect_close(train_on(2, exact, model, 4), want, "exact sums");
}

TEST(Lamb, ResumesInAnotherLayoutWithThePlannedMemory) {
  const Scratch scratch;
  std::vector<double> losses;
  auto config = [](int ranks, int stage, bool disk) {
    config::DsConfig c = lamb(config_for(ranks, 6 / ranks, 1));
    c.zero.stage = stage;
    return disk ? with(c, Homes{.optimizer = true, .state_on_disk = true}) : c;
  };
  auto train_on_layout = [&](int ranks, int stage, bool disk, bool saves) {
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      const config::DsConfig c = config(ranks, stage, disk);
      runtime::Engine engine(c, small_gpt(), world, {});
      Tokens tokens(c.train_micro_batch_size_per_gpu);
      if (!saves) engine.load_checkpoint(scratch.folder());
      for (int step = saves ? 0 : 3; step < 6; ++step) {
        const double loss = engine.train_batch(source(tokens, c, step, world.rank(), ranks)).loss;
        if (saves && step == 2) engine.save_checkpoint(scratch.folder(), "here");
        if (world.rank() != 0 || step < 3) continue;
        if (saves)
          losses.push_back(loss);
        else
          EXPECT_NEAR(loss, losses[size_t(step) - 3], 1e-6);
      }
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    });
  };
  train_on_layout(2, 2, true, true);
  train_on_layout(3, 3, false, false);
  train_on_layout(1, 0, true, false);
}

}  // namespace
}  // namespace cleave::testing
