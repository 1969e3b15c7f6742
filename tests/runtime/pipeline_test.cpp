// A model cut into a pipeline trains like the whole model: pipe x data x ZeRO stage x schedule x
// accumulation, each against one stage with the same data-parallel size.
#include <map>
#include <mutex>

#include "runtime/stage/pipeline_cut.h"
#include "tests/runtime/compare.h"
#include "tests/runtime/slow_sends.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

constexpr int kSteps = 3;

config::DsConfig pipelined(config::DsConfig c, int stages, const std::string& schedule) {
  c.pipeline.stages = stages;
  c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = schedule == "interleaved" && stages > 1 ? 2 : 1;
  return c;
}

config::DsConfig config(int data, int zero, int accumulation) {
  config::DsConfig c = config_for(data, 1, accumulation);
  c.zero.stage = zero, c.zero.overlap_comm = zero == 3;
  return c;
}

// Expects equal steps and weights on every rank; returns rank 0's.
Training train_on_all(int ranks, const config::DsConfig& c, bool tied, int steps = kSteps) {
  std::vector<Training> runs{size_t(ranks)};
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    runs[size_t(world.rank())] = train(world, c, deep_gpt(tied), steps);
  });
  for (int r = 1; r < ranks; ++r) expect_same_bits(runs[size_t(r)], runs[0], fmt::format("rank {}", r));
  return std::move(runs[0]);
}

class Pipeline : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(PipeAndData, Pipeline,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(1, 2, 3)),
                         [](const auto& p) {
                           return fmt::format("pipe{}data{}", std::get<0>(p.param), std::get<1>(p.param));
                         });

// Every schedule adds a parameter's gradient over micro-batches in the same order, so all give the bits of
// one stage.
TEST_P(Pipeline, GivesTheBitsOfOneStageForEveryZeroStageScheduleAndAccumulation) {
  const auto [pipe, data] = GetParam();
  Sampled sampled(4 * pipe + data);
  for (int zero : {0, 1, 2, 3})
    for (int accumulation : {1, 2, 4, 5}) {
      const std::vector<std::string> schedules = sampled.of(pipeline::schedule_names());
      if (schedules.empty()) continue;
      const config::DsConfig c = config(data, zero, accumulation);
      const Training want = train_on_all(data, c, false);
      for (const std::string& schedule : schedules)
        expect_same_bits(train_on_all(pipe * data, pipelined(c, pipe, schedule), false), want,
                         fmt::format("pipe {} data {} zero {} {} accumulation {}", pipe, data, zero, schedule,
                                     accumulation));
    }
}

// The tied matrix's gradient has two parts, from the head and from the embedding. One stage adds them
// micro-batch by micro-batch; a pipeline sums each part first. The order differs from one stage, but is the
// same for all pipelines.
TEST_P(Pipeline, OfATiedModelIsCloseToOneStageAndTheSameForEverySchedule) {
  const auto [pipe, data] = GetParam();
  Sampled sampled(4 * pipe + data);
  for (int zero : {0, 2, 3})
    for (int accumulation : {1, 4}) {
      const std::vector<std::string> schedules = sampled.of(pipeline::schedule_names());
      if (schedules.empty()) continue;
      const config::DsConfig c = config(data, zero, accumulation);
      const Training want = train_on_all(data, c, true);
      const Training two = train_on_all(2 * data, pipelined(c, 2, "1f1b"), true);
      for (const std::string& schedule : schedules) {
        const Training got = train_on_all(pipe * data, pipelined(c, pipe, schedule), true);
        const std::string what = fmt::format("zero {} {} accumulation {}", zero, schedule, accumulation);
        expect_same_bits(got, pipe == 1 ? want : two, what);
        EXPECT_LT(relative_distance(got.weights, want.weights), 1e-6) << what;
        for (size_t s = 0; s < size_t(kSteps); ++s) {
          EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 1e-6 * want.steps[s].loss) << what;
          EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 1e-6 * want.steps[s].grad_norm)
              << what;
        }
      }
    }
}

TEST(PipelineRuns, DropoutOffloadWorkerStreamsAndPartitionsChangeNoBit) {
  const config::DsConfig one = config(2, 2, 4);
  const auto run = [](const config::DsConfig& c, int ranks, runtime::EngineOptions options) {
    return train_on(
        ranks, c, [] { return deep_gpt(false, DType::fp32, 0.3f); }, kSteps, options);
  };
  const Training want = run(one, 2, {});
  for (const char* method : {"uniform", "parameters", "balanced", "type:^h", "1,2,5"})
    for (bool offload : {false, true}) {
      config::DsConfig c = pipelined(one, 3, "1f1b");
      c.pipeline.partition_method = method, c.zero.overlap_comm = offload;
      if (offload) c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
      expect_same_bits(run(c, 6, {}), want, method);
      expect_same_bits(run(c, 6, {.compute = Stream::Mode::worker}), want,
                       std::string(method) + ", worker streams");
    }
}

// Rotation, grouped heads and gated units work in both parts of a split backward.
TEST(PipelineRuns, OfLlamaGivesTheBitsOfOneStageForEveryScheduleAlsoWithRecomputation) {
  const auto llama = [] { return deep_llama(); };
  for (int zero : {1, 3}) {
    const config::DsConfig one = config(2, zero, 4);
    const Training want = train_on(2, one, llama, kSteps);
    for (const std::string& schedule : pipeline::schedule_names())
      for (int recompute : {0, 1, 2}) {
        config::DsConfig c = pipelined(one, 3, schedule);
        c.checkpointing.lean = recompute == 1, c.checkpointing.interval = recompute == 2 ? 1 : 0;
        const std::string what = fmt::format("zero {} {} recomputation {}", zero, schedule, recompute);
        expect_same_bits(train_on(6, c, llama, kSteps), want, what);
      }
  }
}

TEST(PipelineRuns, SixteenBitTypesGiveTheBitsOfOneStage) {
  for (const config::Precision precision : {config::Precision::bf16, config::Precision::fp16})
    for (const bool wide : {false, true}) {
      const DType type = precision == config::Precision::bf16 ? DType::bf16 : DType::fp16;
      config::DsConfig one = config(2, 2, 4);
      one.precision = precision, one.fp16.enabled = precision == config::Precision::fp16,
      one.fp16.initial_scale_power = 10;
      if (wide) one.grad_accum_dtype = config::Precision::fp32;
      const auto run = [&](const config::DsConfig& c, int ranks) {
        return train_on(
            ranks, c, [&] { return deep_gpt(false, type); }, kSteps);
      };
      const Training want = run(one, 2);
      EXPECT_FALSE(want.steps.back().skipped);
      for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
        expect_same_bits(run(pipelined(one, 3, schedule), 6), want, schedule);
    }
}

// Norms sum their gradients over blocks of rows: 140 rows of a micro-batch are three blocks, and a split
// backward keeps the sum until the weight part adds it to that of earlier micro-batches.
TEST(PipelineRuns, NormsOfManyRowsHaveTheSameBitsInEverySchedule) {
  for (const bool rms : {false, true}) {
    const config::DsConfig one = config_for(1, 20, 3);
    const auto run = [&](const config::DsConfig& c, int ranks) {
      return train_on(
          ranks, c, [&] { return rms ? deep_llama() : deep_gpt(false); }, 3);
    };
    const Training want = run(one, 1);
    for (const char* schedule : {"1f1b", "zb-h1"})
      expect_same_bits(run(pipelined(one, 3, schedule), 3), want, fmt::format("{} rms {}", schedule, rms));
  }
}

// One buffer holds the gradient for the previous stage, micro-batch after micro-batch.
TEST(PipelineRuns, AGradientOnItsWayIsNotWrittenOver) {
  const auto losses = [](const char* schedule, bool slow) {
    config::DsConfig c = pipelined(config(1, 0, 6), 2, schedule);
    c.zero.overlap_comm = true;
    std::vector<double> out;
    comm::run_ranks(2, [&](comm::Communicator& world) {
      SlowSends late(world);
      comm::Communicator& ranks = slow ? late : world;
      Tokens tokens(1);
      runtime::Engine engine(c, deep_gpt(false), ranks,
                             {.compute = slow ? Stream::Mode::worker : Stream::Mode::inline_});
      for (int step = 0; step < 3; ++step) {
        const double loss = engine.train_batch(source(tokens, c, step, 0, 1)).loss;
        if (world.rank() == 0) out.push_back(loss);
      }
    });
    return out;
  };
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
    EXPECT_EQ(losses(schedule, true), losses(schedule, false)) << schedule;
}

TEST(PipelineRuns, AModelOfOneLayerAStageTrains) {
  const config::DsConfig one = config(1, 0, 2);
  const auto mlp = [] { return model::make_mlp({{12, 8, 6, kVocab}}, DType::fp32); };
  const auto batches = [](comm::Communicator& world, const config::DsConfig& c, model::Model model) {
    runtime::Engine engine(c, std::move(model), world, {});
    std::vector<float> x(12);
    std::vector<int32_t> y{3};
    double loss = 0;
    for (int step = 0; step < 5; ++step)
      loss = engine
                 .train_batch([&](int micro) {
                   for (size_t i = 0; i < x.size(); ++i) x[i] = float((step + micro + int(i)) % 5) - 2;
                   return Batch{.input = Tensor(x.data(), DType::fp32, {1, 12}, MemoryKind::host),
                                .targets = Tensor(y.data(), DType::int32, {1}, MemoryKind::host),
                                .valid_targets = 1};
                 })
                 .loss;
    return loss;
  };
  double want = 0;
  comm::run_ranks(1, [&](comm::Communicator& world) { want = batches(world, one, mlp()); });
  comm::run_ranks(2, [&](comm::Communicator& world) {
    EXPECT_EQ(batches(world, pipelined(one, 2, "1f1b"), mlp()), want);
  });
}

TEST(PipelineRuns, RejectShapesThatDoNotDivideAndNameValidOnes) {
  const auto refusal = [](int ranks, const config::DsConfig& c) -> std::string {
    try {
      train_on_all(ranks, c, true, 0);
    } catch (const Error& e) {
      return fmt::format("{}: {}", int(e.exit()), e.what());
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(4, pipelined(config(1, 0, 1), 3, "1f1b")),
            "2: pipeline.stages is 3, which does not divide the 4 ranks of this job; use 1, 2, 4");
  EXPECT_EQ(refusal(9, pipelined(config(1, 0, 1), 9, "1f1b")),
            "2: pipeline.stages * pipeline.virtual_stages: too many pieces (got 9 for 8 layers, expected at "
            "most 8); each piece needs a layer");
  EXPECT_EQ(refusal(2, pipelined(config(1, 0, 1), 2, "2f2b")),
            "2: pipeline.schedule: unknown (got \"2f2b\", expected gpipe, 1f1b, interleaved, zb-h1)");
}

TEST(Pipeline, ExpectsSplitBackwardsOnlyOfLayersThatSupportThem) {
  const auto cut = [](const char* schedule, const model::Model& model) {
    config::DsConfig c = config_for(1, 1, 8);
    c.pipeline.stages = 2, c.pipeline.schedule = schedule;
    return runtime::cut_pipeline(c, model);
  };
  for (const auto& model : {+[] { return deep_gpt(true); }, +[] { return deep_llama(); }}) {
    const runtime::PipelineCut split = cut("zb-h1", model());
    EXPECT_LT(split.idle_share, 0.9 * cut("1f1b", model()).idle_share) << split.line;
    EXPECT_EQ(split.line.find("no layer"), std::string::npos) << split.line;
  }
  const auto mlp = [] { return model::make_mlp({{12, 8, 6, kVocab}}, DType::fp32); };
  const runtime::PipelineCut whole = cut("zb-h1", mlp());
  EXPECT_NEAR(whole.idle_share, cut("1f1b", mlp()).idle_share, 0.02);
  EXPECT_NE(whole.line.find("no layer of this model can split its backward"), std::string::npos)
      << whole.line;
}

}  // namespace
}  // namespace cleave::testing
