// Other configurations of a job that does not fit, and predictions to choose between them.
#include "plan/search.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config_schema/read_config.h"
#include "core/units.h"
#include "plan/fit_layers.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int kWorld = 4;

// Empty if the engine rejects the layout.
std::optional<plan::Candidate> planned(const std::string& text, config::DsConfig config,
                                       const plan::MakerOf& maker, bool every_rank, int world = kWorld,
                                       const MemoryLimits& limits = {}) {
  try {
    plan::fit_layers(config, world, maker, limits);
    return plan::Candidate{
        .text = text,
        .config = config,
        .plan = plan::plan_job(config, world, maker(config),
                               {.ranks = every_rank ? plan::PlanRanks::all : plan::PlanRanks::of_stages}),
        .change = {}};
  } catch (const Error&) {
    return std::nullopt;
  }
}

plan::TryConfig candidates(int world = kWorld, int layers = 4, const MemoryLimits& limits = {}) {
  return [=](const std::string& text, bool every_rank) -> std::optional<plan::Candidate> {
    config::ReadResult read = config::read_ds_config(text, "f", {.world_size = world});
    if (!read.ok()) return std::nullopt;
    const plan::MakerOf maker = [&](const config::DsConfig& c) {
      return [&](comm::Communicator& ranks, const runtime::EngineOptions& options) {
        return std::make_unique<runtime::Engine>(
            c,
            [&](const model::Axes& axes) {
              return model::make_model(
                  model::kGpt2, {.vocab = 32, .positions = 16, .width = 16, .layers = layers, .heads = 4},
                  runtime::model_dtype(c), 16, "narrow", axes);
            },
            ranks, options);
      };
    };
    return planned(text, read.config, maker, every_rank, world, limits);
  };
}

plan::Candidate given() {
  return *candidates()(R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2})", true);
}

int64_t device_bytes(const plan::JobPlan& plan) {
  int64_t most = 0;
  for (const plan::RankPlan& r : plan.ranks) most = std::max(most, r.memory.total(MemoryKind::device));
  return most;
}

TEST(Changes, FitAndKeepTheGlobalBatch) {
  const plan::Candidate now = given();
  const int64_t bytes = device_bytes(now.plan);
  for (const int percent : {99, 80, 60, 40, 30, 20}) {
    const MemoryLimits limits{.device_bytes = bytes * percent / 100};
    const auto changes = plan::changes_that_fit(now, limits, candidates()).fitting;
    ASSERT_FALSE(changes.empty()) << percent;
    EXPECT_LE(changes.size(), 3u);
    for (const plan::Candidate& t : changes) {
      // Applies the change like a user who edits the file.
      nlohmann::json edited = nlohmann::json::parse(now.text);
      edited.merge_patch(nlohmann::json::parse(t.change));
      const std::optional<plan::Candidate> again = candidates()(edited.dump(), true);
      ASSERT_TRUE(again.has_value()) << t.change;
      EXPECT_LE(device_bytes(again->plan), limits.device_bytes) << t.change;
      EXPECT_EQ(again->config.train_batch_size, now.config.train_batch_size) << t.change;
    }
  }
}

TEST(Changes, FitIntoTheMemoryOfTheHostToo) {
  const plan::Candidate now = given();
  const auto host_bytes = [](const plan::JobPlan& plan) {
    int64_t most = 0;
    for (const plan::RankPlan& r : plan.ranks)
      most = std::max(most, r.memory.total(MemoryKind::pinned) + r.memory.total(MemoryKind::host));
    return most;
  };
  const int64_t device = device_bytes(now.plan) / 2, all = 1 << 20;
  int64_t used = 0;  // by some change, with plenty of host memory
  for (const plan::Candidate& t :
       plan::changes_that_fit(now, {.device_bytes = device, .host_bytes = all}, candidates(), 99).fitting)
    used = std::max(used, host_bytes(t.plan));
  ASSERT_GT(used, 0);
  const MemoryLimits limits{.device_bytes = device, .host_bytes = used - 1};
  const auto changes = plan::changes_that_fit(now, limits, candidates(), 99).fitting;
  ASSERT_FALSE(changes.empty());
  for (const plan::Candidate& t : changes) EXPECT_LE(host_bytes(t.plan), limits.host_bytes) << t.change;
}

TEST(Changes, AreSingleOnesIfOneIsEnough) {
  const plan::Candidate now = given();
  const auto changes =
      plan::changes_that_fit(now, {.device_bytes = device_bytes(now.plan) - 1}, candidates());
  ASSERT_EQ(changes.fitting.size(), 3u);
  // Sharding has the lowest cost, so it comes first.
  EXPECT_EQ(changes.fitting[0].change, R"({"zero_optimization":{"stage":1}})");
  const std::string text = plan::format_changes(now, changes);
  EXPECT_NE(text.find(R"({"zero_optimization":{"stage":1}}, device )"), std::string::npos) << text;
}

TEST(Changes, OfAJobThatNeverFitsAreNone) {
  const plan::Candidate now = given();
  const plan::Changes changes = plan::changes_that_fit(now, {.device_bytes = 1}, candidates());
  EXPECT_TRUE(changes.fitting.empty());
  ASSERT_TRUE(changes.smallest.has_value());
  EXPECT_LT(device_bytes(changes.smallest->plan), device_bytes(now.plan) / 4);
  const std::string text = plan::format_changes(now, changes);
  EXPECT_NE(text.find("no change"), std::string::npos) << text;
  EXPECT_NE(text.find(changes.smallest->change), std::string::npos) << text;
  EXPECT_NE(plan::format_changes(now, {}).find("no change"), std::string::npos);
}

// Layout that needs every kind of saving at once, including buffers.
TEST(Changes, FindALayoutThatNeedsAllOfThem) {
  const plan::Candidate small = *candidates()(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 32, "tensor_parallel": {"autotp_size": 2},
      "activation_checkpointing": {"interval": 1}, "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000,
      "stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1000,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})",
      true);
  const plan::Changes changes =
      plan::changes_that_fit(given(), {.device_bytes = device_bytes(small.plan)}, candidates());
  EXPECT_FALSE(changes.fitting.empty()) << plan::format_changes(given(), changes);
}

TEST(Changes, NameNoStageThatIsSetAndNoShardingOfOneRank) {
  const plan::TryConfig alone = candidates(1);
  for (const char* text : {R"({"train_batch_size": 4, "zero_optimization": {"stage": 3}})",
                           R"({"train_batch_size": 4, "zero_optimization": {"stage": 2}})"}) {
    const plan::Candidate one = *alone(text, true);
    int64_t tried = 0;
    for (const int percent : {99, 70, 50, 30})
      for (const plan::Candidate& t :
           plan::changes_that_fit(one, {.device_bytes = device_bytes(one.plan) * percent / 100}, alone, 9)
               .fitting) {
        ++tried;
        // Parameter offload requires stage 3, so moving parameters names the stage if it is not set.
        const bool needed = one.config.zero.stage != 3 && t.change.find("offload_param") != std::string::npos;
        EXPECT_TRUE(needed || t.change.find("stage") == std::string::npos) << t.change;
      }
    EXPECT_GT(tried, 4);
  }
}

TEST(Changes, MoveParametersToDiskIfHostMemoryIsAlsoShort) {
  const plan::Candidate one = *candidates(kWorld, 24)(
      R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0,
      "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}})",
      true);
  int64_t host = 0;
  for (const plan::RankPlan& r : one.plan.ranks)
    host = std::max(host, r.memory.total(MemoryKind::pinned) + r.memory.total(MemoryKind::host));
  const auto changes =
      plan::changes_that_fit(one, {.host_bytes = host - 1}, candidates(kWorld, 24), 9).fitting;
  const auto to_disk = std::find_if(changes.begin(), changes.end(), [](const plan::Candidate& t) {
    return t.change.find(R"("offload_param":{"device":"nvme")") != std::string::npos;
  });
  EXPECT_NE(to_disk, changes.end());
}

plan::DeviceModel slow() {
  plan::DeviceModel d = plan::device_model("h200");
  d.training = 1e9, d.per_node = 4;
  return d;
}

TEST(Suggest, IsAtLeastAsFastAsEverythingThatFitsOnTheSameRanks) {
  const plan::Candidate now = given();
  const MemoryLimits limits{.device_bytes = device_bytes(now.plan) / 2};
  const auto found = plan::suggest(now, limits, slow(), candidates(kWorld, 4, limits));
  ASSERT_TRUE(found.has_value());
  EXPECT_LE(device_bytes(found->best.plan), limits.device_bytes);
  EXPECT_EQ(found->best.config.train_batch_size, now.config.train_batch_size);
  EXPECT_LE(found->fitting, found->tried);
  for (const int stage : {0, 1, 2, 3})
    for (const int micro : {1, 2, 4, 8, 16})
      for (const int interval : {0, 1})
        for (const char* device : {"none", "cpu"}) {
          const std::optional<plan::Candidate> t =
              candidates()(fmt::format(R"({{"train_batch_size": 64, "train_micro_batch_size_per_gpu": {},
                  "zero_optimization": {{"stage": {}, "offload_optimizer": {{"device": "{}"}}}},
                  "activation_checkpointing": {{"interval": {}}}}})",
                                       micro, stage, device, interval),
                           true);
          if (!t || device_bytes(t->plan) > limits.device_bytes || stage == 0) continue;
          // Predictions within a thousandth of each other count as equal.
          EXPECT_LE(found->best.seconds, plan::predict(t->config, t->plan, slow()).total() * (1 + 1e-3))
              << t->text << found->best.text;
        }
}

// Less than one sample per rank: with 4 ranks and a global batch of 1, or if not even one sample fits.
TEST(Suggest, CutsSequencesIfAWholeOneIsTooLarge) {
  const plan::Candidate now = *candidates()(R"({"train_batch_size": 4})", true);
  const auto fit = std::make_shared<MemoryLimits>();
  const auto long_ones = [fit](const std::string& text, bool every_rank) -> std::optional<plan::Candidate> {
    const config::ReadResult read = config::read_ds_config(text, "f", {.world_size = kWorld});
    if (!read.ok() || read.config.tensor_parallel.size() > 1 || read.config.pipeline.stages > 1)
      return std::nullopt;
    const plan::MakerOf maker = [](const config::DsConfig& c) {
      return [&c](comm::Communicator& ranks, const runtime::EngineOptions& options) {
        const runtime::ModelFactory model = [](const model::Axes& axes) {
          return model::make_model(model::kGpt2,
                                   {.vocab = 32, .positions = 512, .width = 16, .layers = 2, .heads = 4},
                                   DType::fp32, 512, "long", axes);
        };
        return std::make_unique<runtime::Engine>(c, model, ranks, options);
      };
    };
    return planned(text, read.config, maker, every_rank, kWorld, *fit);
  };
  auto bytes_of = [&](int sequence, int interval) {
    return device_bytes(
        long_ones(
            fmt::format(
                R"({{"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": {},
        "zero_optimization": {{"stage": 3, "overlap_comm": true, "offload_param": {{"device": "cpu"}}, "offload_optimizer": {{"device": "cpu"}}}},
        "activation_checkpointing": {{"interval": {}}}}})",
                sequence, interval),
            true)
            ->plan);
  };
  ASSERT_LT(bytes_of(4, 1), bytes_of(2, 1));
  ASSERT_LT(bytes_of(2, 1), bytes_of(1, 1));
  for (const int needed : {1, 2, 4}) {
    *fit = {.device_bytes = bytes_of(needed, 1)};
    const auto found = plan::suggest(now, *fit, slow(), long_ones);
    ASSERT_TRUE(found.has_value()) << needed;
    EXPECT_GE(found->best.config.sequence_ranks(), needed);
    EXPECT_EQ(found->best.config.train_batch_size, 4);
  }
  // If a whole sequence fits, sequences are not cut.
  const auto easy = plan::suggest(now, {}, slow(), candidates());
  EXPECT_EQ(easy->best.text.find("sequence_parallel_size"), std::string::npos);
}

// Only compute matters on this device, so every layout without recomputation takes the same time.
TEST(Suggest, TakesTheLeastMemoryOfEqualTimesAndPrintsTheGain) {
  plan::DeviceModel d = slow();
  d.training = 1, d.slowdown_fp32 = 1;
  const plan::Candidate now = given();
  const auto found = plan::suggest(now, {}, d, candidates());
  ASSERT_TRUE(found.has_value());
  EXPECT_LT(device_bytes(found->best.plan), device_bytes(now.plan) / 2);
  EXPECT_EQ(found->best.config.train_micro_batch_size_per_gpu, 1);
  EXPECT_EQ(found->best.config.zero.stage, 1) << "what fits first is kept";
  const std::string gain = plan::format_gain(now, *found, {.device_bytes = 1}, d);
  EXPECT_NE(gain.find(format_bytes(device_bytes(now.plan)) + " of device memory, which does not fit"),
            std::string::npos)
      << gain;
  EXPECT_NE(gain.find("the same time"), std::string::npos) << gain;
}

TEST(Suggest, HasNoAnswerIfNothingFits) {
  EXPECT_FALSE(plan::suggest(given(), {.device_bytes = 1000}, slow(), candidates()).has_value());
}

TEST(Predict, ReadsRatesFromAFileAndNamesItsErrors) {
  const Scratch scratch;
  const std::string good =
      scratch.write("good.json", R"({"training": 1e12, "slowdown_fp32": 2, "memory": 3e11,
      "host_link": 4e10, "node_link": 5e9, "network": 6e8, "host_memory": 7e10, "disk": 8e8,
      "memory_bytes": 9e9, "per_node": 2})");
  const plan::DeviceModel d = plan::device_model(good);
  EXPECT_EQ(d.training, 1e12);
  EXPECT_EQ(d.disk, 8e8);
  EXPECT_EQ(d.memory_bytes, 9e9);
  EXPECT_EQ(d.per_node, 2);
  const std::string bad = scratch.write("bad.json", R"({"training": -1, "memroy": 3e11, "per_node": 2})");
  expect_error(Exit::usage,
               {"training: expected a number above 0, got -1", "memory: expected", "memroy: unknown"},
               [&] { plan::device_model(bad); });
  expect_error(Exit::usage, {"h2000", "a100-80", ".json"}, [] { plan::device_model("h2000"); });
  expect_error(Exit::usage, {"none.json", "cannot be opened"}, [] { plan::device_model("none.json"); });
}

TEST(Predict, AddsTheTermsOfARoofline) {
  const plan::Candidate t = *candidates()(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                                "bf16": {"enabled": true}})",
                                          true);
  const plan::DeviceModel d = slow();
  const plan::StepTime time = plan::predict(t.config, t.plan, d);
  EXPECT_NEAR(time.compute, t.plan.flops / kWorld / d.training, 1e-9 * time.compute);
  EXPECT_EQ(time.waiting, 0);
  // Ring all-reduce of 2-byte gradients: each rank sends 2 (n - 1) / n of them, and the optimizer reads and
  // writes 12 bytes per parameter.
  const double params = double(t.plan.ranks[0].memory.at(MemoryKind::device, Category::weights)) / 2;
  double sent = 0;
  for (const int64_t b : t.plan.ranks[0].sent[0].bytes.sent) sent += double(b);
  EXPECT_NEAR(sent, 2 * 2 * params * (kWorld - 1) / kWorld, 0.01 * sent);
  EXPECT_NEAR(time.update, 2 * 12 * params / d.memory, 1e-6 * time.update);
  config::DsConfig other = t.config;
  other.precision = config::Precision::fp32;
  EXPECT_NEAR(plan::predict(other, t.plan, d).compute, time.compute * d.slowdown_fp32, 1e-9 * time.compute);
}

// Recomputed products take their time, and repeated norms and activation functions that of their traffic.
TEST(Predict, CountsRepeatedWork) {
  const auto planned_with = [](const std::string& recomputed) {
    return *candidates()(
        R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                             "activation_checkpointing": )" +
            recomputed + "}",
        true);
  };
  const auto flops = [](const plan::Candidate& t) {
    double sum = 0;
    for (const kernels::Work& w : t.plan.ranks[0].work) sum += w.flops;
    return sum;
  };
  plan::DeviceModel d = slow();
  d.memory = 1e30;
  const plan::Candidate all = planned_with("{}"), again = planned_with(R"({"interval": 1})"),
                        lean = planned_with(R"({"policy": "selective"})");
  const double kept = plan::predict(all.config, all.plan, d).compute,
               repeated = plan::predict(again.config, again.plan, d).compute;
  EXPECT_GT(repeated, 1.2 * kept);
  EXPECT_NEAR(repeated / kept, flops(again) / flops(all), 1e-9);
  EXPECT_NEAR(plan::predict(lean.config, lean.plan, d).compute, kept, 1e-9 * kept);
  d.memory = 1e6;
  EXPECT_GT(plan::predict(lean.config, lean.plan, d).compute, 1.01 * kept);
}

TEST(Predict, TakesTheSoonerSideForOffloadedStateUnlessTheConfigurationSays) {
  plan::DeviceModel d = slow();
  auto candidate = [](const std::string& where) {
    return *candidates()(
        R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
                         "cleave": {"offload_update": ")" +
            where + R"("}, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}})",
        true);
  };
  auto predicted = [&](const std::string& where) {
    const plan::Candidate t = candidate(where);
    return plan::predict(t.config, t.plan, d);
  };
  const MemoryTable memory = candidate("auto").plan.ranks[0].memory;
  const double state = double(memory.at(MemoryKind::pinned, Category::master) +
                              memory.at(MemoryKind::pinned, Category::optimizer_state));
  ASSERT_GT(state, 0);
  // Twelve bytes per parameter, read and written by the host, or transferred each way by the link.
  for (const auto& [host_memory, host_link] : {std::pair{8e9, 1e9}, {1e9, 8e9}}) {
    d.host_memory = host_memory, d.host_link = host_link;
    const double on_host = std::max(2 * state / host_memory, state / 6 / host_link),
                 streamed = state / host_link;
    EXPECT_NEAR(predicted("host").update, on_host, 1e-9 * on_host);
    EXPECT_NEAR(predicted("device").update, streamed, 1e-9 * streamed);
    EXPECT_NEAR(predicted("auto").update, std::min(on_host, streamed), 1e-9 * streamed);
    EXPECT_EQ(predicted("auto").streams, streamed < on_host);
    EXPECT_EQ(plan::format(predicted("auto")).find("streams through") != std::string::npos,
              streamed < on_host);
  }
}

}  // namespace
}  // namespace cleave::testing
