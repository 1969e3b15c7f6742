// Memory, sent bytes, overflow, evaluation, checkpoints and failures of a pipeline.
#include <fstream>

#include "pipeline/schedule_file.h"
#include "runtime/stage/pipeline_cut.h"
#include "tests/runtime/compare.h"
#include "tests/runtime/dying_rank.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

config::DsConfig pipelined(int stages, int data, int accumulation, const std::string& schedule = "1f1b") {
  config::DsConfig c = config_for(data, 2, accumulation);
  c.pipeline.stages = stages;
  c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = schedule == "interleaved" ? 2 : 1;
  return c;
}

void one_step(runtime::Engine& engine, comm::Communicator& world, const config::DsConfig& c,
              int64_t step = 0) {
  Tokens tokens(2);
  engine.train_batch(source(tokens, c, step, engine.mesh().place(world.rank()).data, engine.mesh().data));
}

TEST(PipelineMemory, PlannedEqualsPeakOnEveryRank) {
  for (const std::string& schedule : pipeline::schedule_names())
    for (int zero : {0, 1, 2, 3})
      comm::run_ranks(6, [&](comm::Communicator& world) {
        config::DsConfig c = pipelined(3, 2, 5, schedule);
        c.zero.stage = zero, c.zero.overlap_comm = zero >= 2;
        runtime::Engine engine(c, deep_gpt(true), world, {});
        one_step(engine, world, c);
        Tokens tokens(2);
        engine.evaluate(source(tokens, c, 1, engine.mesh().place(world.rank()).data, 2), 3).loss;
        EXPECT_EQ(engine.memory_planned(), engine.memory_peak()) << schedule << " rank " << world.rank();
        EXPECT_EQ(engine.memory_planned(), engine.memory_live());
      });
}

TEST(PipelineMemory, AnEarlierStageHoldsMoreMicroBatches) {
  std::vector<int64_t> kept(4), whole(4);
  comm::run_ranks(4, [&](comm::Communicator& world) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      config::DsConfig c = pipelined(4, 1, 8, schedule);
      c.pipeline.partition_method = "1,3,3,1";
      runtime::Engine engine(c, deep_gpt(false), world, {});
      (schedule[0] == '1' ? kept : whole)[size_t(world.rank())] =
          engine.memory_live().total(Category::activations);
    }
  });
  // Stages 1 and 2 have three layers each, one of them empty on stage 1; 1F1B holds 3 and 2 micro-batches,
  // GPipe 8 and 8.
  EXPECT_GT(kept[1], kept[2]);
  EXPECT_GT(whole[1], 2 * kept[1]);
  EXPECT_GT(whole[2], 3 * kept[2]);
}

TEST(PipelineMemory, AStageThatDoesNotFitIsRefusedOnEveryRankAndNamed) {
  config::DsConfig c = pipelined(3, 1, 2);
  c.pipeline.partition_method = "1,6,1";
  const auto device = [](const MemoryTable& t) { return t.total(MemoryKind::device); };
  std::vector<int64_t> needs(3);
  comm::run_ranks(3, [&](comm::Communicator& world) {
    needs[size_t(world.rank())] = device(runtime::Engine(c, deep_gpt(false), world, {}).memory_planned());
  });
  ASSERT_GT(needs[1], std::max(needs[0], needs[2]));
  comm::run_ranks(3, [&](comm::Communicator& world) {
    try {
      runtime::Engine engine(c, deep_gpt(false), world, {.limits = {.device_bytes = needs[1] - 1}});
      ADD_FAILURE() << "stage 1 fits into less than it needs";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::memory);
      EXPECT_TRUE(std::string(e.what()).starts_with("stage 1 of the pipeline: ")) << e.what();
      EXPECT_NE(std::string(e.what()).find("does not fit"), std::string::npos) << e.what();
    }
  });
}

TEST(PipelineCosts, OfLayersAndHeadAddUpToTheModelsArithmetic) {
  const model::Model gpt = model::make_model(
      model::kGpt2, {.vocab = 61, .positions = 24, .width = 32, .layers = 3, .heads = 2}, DType::fp32, 16);
  double flops = 6.0 * 2 * 16 * 61 * 32;  // products of the head, for two samples
  model::TensorSpec in = gpt.input(2);
  for (const auto& layer : gpt.layers) {
    flops += layer->flops(in);
    in = layer->output(in);
  }
  config::DsConfig config;
  config.train_batch_size = config.train_micro_batch_size_per_gpu = 2, config.gradient_accumulation_steps = 1;
  double costs = 0;
  for (const pipeline::LayerCost& layer : runtime::cut_pipeline(config, gpt, true).layers) costs += layer.flops;
  EXPECT_DOUBLE_EQ(costs, flops);
}

TEST(PipelineBytes, AStepSendsOneBoundaryUpAndOneDownAMicroBatchAndCut) {
  const int64_t boundary = 2 * kSeq * 12 * 4;  // samples x positions x width x bytes
  for (const std::string& schedule : pipeline::schedule_names())
    for (int accumulation : {1, 4}) {
      std::vector<int64_t> sent(3);
      comm::run_ranks(3, [&](comm::Communicator& world) {
        const config::DsConfig c = pipelined(3, 1, accumulation, schedule);
        runtime::Engine engine(c, deep_gpt(true), world, {});
        one_step(engine, world, c);
        sent[size_t(world.rank())] = engine.comm_bytes()[comm::Collective::send];
      });
      const int pieces = schedule == "interleaved" ? 6 : 3;
      EXPECT_EQ(sent[0] + sent[1] + sent[2], 2 * (pieces - 1) * accumulation * boundary) << schedule;
      if (pieces == 3) {
        EXPECT_EQ(sent, (std::vector<int64_t>{accumulation * boundary, 2 * accumulation * boundary,
                                              accumulation * boundary}));
      }
    }
}

TEST(PipelineOverflow, OnOneStageSkipsTheStepOnAll) {
  for (const std::string& schedule : pipeline::schedule_names())
    comm::run_ranks(4, [&](comm::Communicator& world) {
      config::DsConfig c = pipelined(2, 2, 2, schedule);
      c.precision = config::Precision::fp16, c.fp16.enabled = true;
      c.zero.stage = 2;
      runtime::Engine engine(c, deep_gpt(true, DType::fp16), world, {});
      const Weights before = weights_of(engine);
      // A weight of the second stage makes its activations overflow.
      engine.set_parameters([&](const ParamSpec& p) {
        std::vector<float> v = before.at(p.name);
        if (p.name == "h.4.mlp.c_fc.weight") std::fill(v.begin(), v.end(), 60000.0f);
        return v;
      });
      Tokens tokens(2);
      const runtime::StepResult r =
          engine.train_batch(source(tokens, c, 0, engine.mesh().place(world.rank()).data, 2));
      EXPECT_TRUE(r.skipped);
      EXPECT_EQ(r.skipped_total, 1);
      const Weights after = weights_of(engine);
      EXPECT_EQ(after.at("h.0.attn.c_attn.weight"), before.at("h.0.attn.c_attn.weight"));
      engine.set_parameters([&](const ParamSpec& p) { return before.at(p.name); });
      bool trained = false;
      for (int64_t step = 1; step < 20 && !trained; ++step)
        trained =
            !engine.train_batch(source(tokens, c, step, engine.mesh().place(world.rank()).data, 2)).skipped;
      EXPECT_TRUE(trained);
    });
}

TEST(PipelineEvaluation, LossAndLogitsAreThoseOfOneStageOnEveryRank) {
  double want_loss = 0;
  std::vector<float> want_logits;
  const auto view = [](comm::Communicator& world, const config::DsConfig& c, double& loss,
                       std::vector<float>& logits) {
    runtime::Engine engine(c, deep_gpt(true), world, {});
    Tokens tokens(2);
    // More micro-batches than one instruction list covers.
    loss =
        engine.evaluate(source(tokens, c, 7, engine.mesh().place(world.rank()).data, engine.mesh().data), 37)
            .loss;
    logits = engine.predict(tokens.at(3, 0));
  };
  comm::run_ranks(
      1, [&](comm::Communicator& world) { view(world, pipelined(1, 1, 1), want_loss, want_logits); });
  for (const char* schedule : {"1f1b", "interleaved"})
    for (int zero : {0, 3})
      comm::run_ranks(3, [&](comm::Communicator& world) {
        config::DsConfig c = pipelined(3, 1, 1, schedule);
        c.zero.stage = zero;
        double loss = 0;
        std::vector<float> logits;
        view(world, c, loss, logits);
        EXPECT_EQ(loss, want_loss);
        EXPECT_EQ(logits, want_logits);
      });
}

struct Layout {
  int pipe, data, zero;
  const char* schedule;
};

// Three steps in one layout, a checkpoint, and three steps in the other, against six in one.
void expect_resumes(Layout first, Layout second, bool same_bits) {
  const Scratch scratch;
  const auto config = [](Layout l) {
    config::DsConfig c = pipelined(l.pipe, l.data, 8 / l.data, l.schedule);
    c.train_micro_batch_size_per_gpu = 1, c.zero.stage = l.zero;
    return c;
  };
  const auto steps = [&](Layout l, int64_t begin, int64_t end) {
    Training run;
    comm::run_ranks(l.pipe * l.data, [&](comm::Communicator& world) {
      const config::DsConfig c = config(l);
      runtime::Engine engine(c, deep_gpt(true), world, {});
      if (begin > 0) engine.load_checkpoint(scratch.folder().string(), "half");
      Tokens tokens(1);
      Training mine;
      for (int64_t s = begin; s < end; ++s)
        mine.steps.push_back(
            engine.train_batch(source(tokens, c, s, engine.mesh().place(world.rank()).data, l.data)));
      if (begin == 0 && end == 3) engine.save_checkpoint(scratch.folder().string(), "half");
      mine.weights = weights_of(engine);
      if (world.rank() == 0) run = std::move(mine);
    });
    return run;
  };
  Training want = steps(first, 0, 6);
  steps(first, 0, 3);
  const Training got = steps(second, 3, 6);
  const std::string what =
      fmt::format("pipe {} x data {} to pipe {} x data {}", first.pipe, first.data, second.pipe, second.data);
  want.steps.erase(want.steps.begin(), want.steps.begin() + 3);
  if (same_bits) return expect_same_bits(got, want, what);
  EXPECT_LT(relative_distance(got.weights, want.weights), 1e-6) << what;
  for (size_t s = 0; s < 3; ++s)
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 1e-6 * want.steps[s].loss) << what;
}

TEST(PipelineCheckpoints, LoadInEveryOtherLayout) {
  expect_resumes({2, 2, 2, "1f1b"}, {2, 2, 2, "1f1b"}, true);
  expect_resumes({2, 2, 3, "1f1b"}, {3, 2, 3, "zb-h1"}, true);
  expect_resumes({4, 1, 0, "interleaved"}, {2, 1, 1, "gpipe"}, true);
  expect_resumes({2, 2, 1, "1f1b"}, {1, 4, 3, "1f1b"}, false);
  expect_resumes({1, 4, 2, "1f1b"}, {2, 2, 0, "interleaved"}, false);
}

TEST(PipelineFailures, ARankThatDiesEndsTheOthersBeforeTheDeadline) {
  for (const std::string& schedule : pipeline::schedule_names())
    for (int victim : {0, 1, 3}) {
      config::DsConfig c = pipelined(2, 2, 4, schedule);
      c.zero.stage = 2, c.zero.overlap_comm = true;
      expect_all_end_with(victim, 4, c, [](const model::Axes&) { return deep_gpt(true); });
    }
}

TEST(PipelineFailures, ARankWithAnotherNumberOfMicroBatchesIsReportedNotWaitedForForever) {
  std::string message;
  try {
    comm::run_ranks(2,
                    [&](comm::Communicator& world) {
                      const config::DsConfig c = pipelined(2, 1, world.rank() == 0 ? 2 : 3);
                      runtime::Engine engine(c, deep_gpt(false), world, {});
                      Tokens tokens(2);
                      engine.train_batch([&](int micro) { return tokens.at(0, micro * 2); });
                    },
                    {.timeout = std::chrono::milliseconds(2000)});
  } catch (const Error& e) {
    message = e.what();
  }
  // One rank waits in the pipe, the other in the next collective; microseconds decide which deadline expires
  // first.
  for (const char* part : {"rank 0", "rank 1", "of group", "missing"})
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
}

TEST(PipelineFiles, AScheduleFromAFileGivesTheBitsOfTheGeneratorsAndAForeignShapeIsRefused) {
  const Scratch scratch;
  const std::string path = scratch.path("own.json");
  std::ofstream(path) << pipeline::schedule_to_json(pipeline::make_schedule("zb-h1", {3, 4, 1}));
  const auto model = [] { return deep_gpt(false); };
  const Training want = train_on(3, pipelined(3, 1, 4), model, 2);
  expect_same_bits(train_on(3, pipelined(3, 1, 4, path), model, 2), want, "from a file");
  expect_error(Exit::usage, {" virtual stages; this job has 3, 5 and 1"},
               [&] { train_on(3, pipelined(3, 1, 5, path), model, 1); });
}

}  // namespace
}  // namespace cleave::testing
