// Stage 3 with gathers among near ranks only: hybrid (mics_shard_size) and nested (zero_hpz_partition_size).
#include <gtest/gtest.h>

#include "tests/runtime/compare.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

enum class Kind { hybrid, nested };

config::DsConfig near_config(Kind kind, int ranks, int near, int64_t accumulation = 1) {
  config::DsConfig c = config_for(ranks, 2, accumulation);
  c.zero.stage = 3;
  (kind == Kind::hybrid ? c.zero.mics_shard_size : c.zero.zero_hpz_partition_size) = near;
  return c;
}

config::DsConfig stage_config(int stage, int ranks, int64_t accumulation = 1) {
  config::DsConfig c = config_for(ranks, 2, accumulation);
  c.zero.stage = stage;
  return c;
}

const auto gpt = [] { return small_gpt(); };

TEST(NearRanks, TrainLikePlainStage3) {
  for (const int ranks : {4, 6})
    for (const int64_t accumulation : {1, 3}) {
      const Training want = train_on(ranks, stage_config(3, ranks, accumulation), gpt, 5);
      for (const Kind kind : {Kind::hybrid, Kind::nested})
        for (const int near : {2, 3})
          for (const bool overlap : {false, true})
            for (const int64_t threshold : {0, 100}) {
              if (ranks % near != 0) continue;
              config::DsConfig c = near_config(kind, ranks, near, accumulation);
              c.zero.overlap_comm = overlap, c.zero.stage3_param_persistence_threshold = threshold;
              if (overlap) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
              const Training got = train_on(ranks, c, gpt, 5);
              const std::string layout =
                  fmt::format("{} x{} near {}", kind == Kind::hybrid ? "hybrid" : "nested", ranks, near);
              EXPECT_LT(relative_distance(got.weights, want.weights), 1e-6) << layout;
              EXPECT_NEAR(got.steps[4].loss / want.steps[4].loss, 1, 1e-6) << layout;
              EXPECT_NEAR(got.steps[4].grad_norm / want.steps[4].grad_norm, 1, 1e-5) << layout;
            }
    }
}

TEST(NearRanks, AtTheEndsOfTheirRangeHaveTheBitsOfAPlainStage) {
  for (const int ranks : {2, 3}) {
    const Training sharded = train_on(ranks, stage_config(3, ranks), gpt, 5);
    expect_same_bits(train_on(ranks, near_config(Kind::hybrid, ranks, ranks), gpt, 5), sharded,
                     "hybrid of all");
    expect_same_bits(train_on(ranks, near_config(Kind::nested, ranks, ranks), gpt, 5), sharded,
                     "nested of all");
    const Training whole = train_on(ranks, stage_config(0, ranks), gpt, 5);
    expect_same_bits(train_on(ranks, near_config(Kind::hybrid, ranks, 1), gpt, 5), whole, "hybrid of one");
  }
}

TEST(NearRanks, HoldTheSharesThatTheirPlanSays) {
  const int ranks = 6, near = 3;
  for (const Kind kind : {Kind::hybrid, Kind::nested})
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      config::DsConfig c = near_config(kind, ranks, near);
      c.precision = config::Precision::bf16;
      runtime::Engine engine(c, small_gpt(DType::bf16), world, {});
      const int shards = kind == Kind::hybrid ? near : ranks;  // for the optimizer
      int64_t n = 0;
      for (const UnitSpec& u : engine.model().units()) n += zero::FlatLayout(u, shards).numel();
      const MemoryTable live = engine.memory_live();
      EXPECT_EQ(live.total(Category::weights), 2 * n / near);
      EXPECT_EQ(live.total(Category::gradients), 2 * n / near);
      EXPECT_EQ(live.total(Category::master), 4 * n / shards);
      EXPECT_EQ(live.total(Category::optimizer_state), 8 * n / shards);
      EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    });
}

// Traffic between groups: none during passes, and once per step the gradients (nested: also the weights).
TEST(NearRanks, SendBetweenGroupsOnceAStep) {
  const int ranks = 4, near = 2;
  for (const int64_t accumulation : {1, 3})
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      const config::DsConfig c = near_config(Kind::nested, ranks, near, accumulation);
      runtime::Engine engine(c, small_gpt(), world, {});
      Tokens tokens(2);
      auto across = [&] {
        for (const auto& [group, bytes] : engine.comm_bytes_by_group())
          if (group == RankGroup{Axis::data, RankGroup::Purpose::across}) return bytes;
        return comm::CommBytes{};
      };
      const comm::CommBytes before = across();
      engine.train_batch(source(tokens, c, 0, world.rank(), ranks));
      int64_t n = 0;
      for (const UnitSpec& u : engine.model().units()) n += zero::FlatLayout(u, ranks).numel();
      EXPECT_EQ(across()[comm::Collective::reduce_scatter] - before[comm::Collective::reduce_scatter],
                4 * n / ranks);
      EXPECT_EQ(across()[comm::Collective::all_gather] - before[comm::Collective::all_gather], 4 * n / ranks);
    });
}

TEST(NearRanks, ComposeWithPipelines) {
  const auto model = [] { return deep_gpt(true); };
  config::DsConfig want = stage_config(3, 4, 4);
  const Training plain = train_on(4, want, model, 3);
  for (const Kind kind : {Kind::hybrid, Kind::nested})
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      config::DsConfig c = near_config(kind, 4, 2, 4);
      c.pipeline.stages = 2, c.pipeline.schedule = schedule;
      const Training got = train_on(8, c, model, 3);
      EXPECT_LT(relative_distance(got.weights, plain.weights), 1e-6) << schedule;
    }
}

TEST(NearRanks, MoveCheckpointsToAndFromOtherLayouts) {
  const Scratch scratch;
  const auto go_on = [&](const config::DsConfig& c, int ranks, bool save) {
    Weights weights;
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      runtime::Engine engine(c, small_gpt(), world, {});
      Tokens tokens(c.train_micro_batch_size_per_gpu);
      if (!save) engine.load_checkpoint(scratch.folder());
      for (int step = 0; step < 2; ++step)
        engine.train_batch(source(tokens, c, engine.step(), world.rank(), ranks));
      if (save) engine.save_checkpoint(scratch.folder(), fmt::format("step{}", engine.step()));
      Weights w = weights_of(engine);
      if (world.rank() == 0) weights = std::move(w);
    });
    return weights;
  };
  for (const Kind kind : {Kind::hybrid, Kind::nested}) {
    const config::DsConfig near = near_config(kind, 4, 2), plain = stage_config(1, 4);
    const Weights four_steps = train_on(4, plain, gpt, 4).weights;
    go_on(near, 4, true);
    EXPECT_LT(relative_distance(go_on(plain, 4, false), four_steps), 1e-6);
    go_on(plain, 4, true);
    EXPECT_LT(relative_distance(go_on(near, 4, false), four_steps), 1e-6);
  }
}

TEST(NearRanks, ThatDoNotDivideTheDataAxisAreRefused) {
  expect_error(Exit::usage, {}, [&] { train_on(4, near_config(Kind::hybrid, 4, 3), gpt, 1); });
}

}  // namespace
}  // namespace cleave::testing
