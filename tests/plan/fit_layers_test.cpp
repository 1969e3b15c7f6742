// Selective recomputation by memory: ranks that fit keep everything, others as much as fits.
#include "plan/fit_layers.h"

#include <set>

#include "tests/plan/planned.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int kStages = 2;

config::DsConfig fitting(const char* schedule) {
  config::DsConfig c = config_for(2, 1, 4);
  c.pipeline.stages = kStages, c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = std::string(schedule) == "interleaved" ? 2 : 1;
  c.checkpointing.policy = config::CheckpointingPolicy::fit;
  return c;
}

plan::MakerOf makers() {
  return [](const config::DsConfig& c) {
    return [&c](comm::Communicator& ranks, const runtime::EngineOptions& options) {
      return std::make_unique<runtime::Engine>(
          c, [](const model::Axes&) { return deep_gpt(true); }, ranks, options);
    };
  };
}

std::vector<int64_t> bytes_of_stages(const plan::JobPlan& plan) {
  std::vector<int64_t> bytes;
  for (const plan::RankPlan* r : plan::largest_of_stages(plan))
    bytes.push_back(r->memory.total(MemoryKind::device));
  return bytes;
}

TEST(FitLayers, KeepEverythingIfItFits) {
  config::DsConfig c = fitting("1f1b");
  EXPECT_TRUE(plan::fit_layers(c, 4, makers(), {}));
  EXPECT_EQ(c.checkpointing.full, std::vector<int64_t>(kStages, 0));
  EXPECT_EQ(c.checkpointing.selective, std::vector<int64_t>(kStages, 0));
  EXPECT_EQ(plan::format_layers(c.checkpointing), "full 0,0, selective 0,0");
  EXPECT_FALSE(plan::fit_layers(c, 4, makers(), {})) << "given numbers stay";
}

// For every limit between the smallest and the largest need: the job fits, the plan equals a training to the
// byte, and one saving less does not fit.
TEST(FitLayers, RecomputeAsLittleAsFits) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1"}) {
    config::DsConfig all = fitting(schedule);
    plan::fit_layers(all, 4, makers(), {});
    config::DsConfig none = fitting(schedule);
    plan::fit_layers(none, 4, makers(), {.device_bytes = 1});
    const std::vector<int64_t> most = bytes_of_stages(plan_for(all, 4, [] { return deep_gpt(true); })),
                               least = bytes_of_stages(plan_for(none, 4, [] { return deep_gpt(true); }));
    ASSERT_LT(least[0], most[0]);
    std::set<std::string> chosen;
    for (const int percent : {10, 40, 70, 95}) {
      const int64_t limit = least[0] + (most[0] - least[0]) * percent / 100;
      if (limit < least[1]) continue;
      config::DsConfig c = fitting(schedule);
      ASSERT_TRUE(plan::fit_layers(c, 4, makers(), {.device_bytes = limit}));
      const std::string name =
          fmt::format("{} {} %: {}", schedule, percent, plan::format_layers(c.checkpointing));
      chosen.insert(plan::format_layers(c.checkpointing));
      expect_planned(
          c, 4, [] { return deep_gpt(true); }, name);
      for (const int64_t bytes : bytes_of_stages(plan_for(c, 4, [] { return deep_gpt(true); })))
        EXPECT_LE(bytes, limit) << name;
      config::DsConfig less = c;
      if (less.checkpointing.full[0] > 0)
        --less.checkpointing.full[0], ++less.checkpointing.selective[0];
      else
        --less.checkpointing.selective[0];
      EXPECT_GT(bytes_of_stages(plan_for(less, 4, [] { return deep_gpt(true); }))[0], limit) << name;
    }
    EXPECT_GT(chosen.size(), 2u) << schedule;
  }
}

TEST(FitLayers, AreAnErrorWithoutAPlanAndForTooManyLayers) {
  config::DsConfig c = fitting("1f1b");
  const auto made = [&] { return plan_for(c, 4, [] { return deep_gpt(true); }); };
  expect_error(Exit::usage, {"activation_checkpointing.policy", "full_layers"}, made);
  c.checkpointing.full = {1, 90}, c.checkpointing.selective = {0, 1};
  expect_error(Exit::usage, {"pipeline rank 1 has", "got 90 + 1"}, made);
}

}  // namespace
}  // namespace cleave::testing
