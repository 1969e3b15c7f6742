// Engine on a GPU: against the CPU, and bit-identical for every partition. Ranks are threads that share the
// GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/build.h"
#include "kernels/elementwise.h"
#include "runtime/unit_engine.h"
#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"
#include "zero/gradient_shards.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

std::vector<Device> gpus() {
  if constexpr (build::cuda) return {Device::cuda(0)};
  return {};
}

// Homes of state, and update sides.
constexpr std::pair<config::OffloadDevice, config::OffloadUpdate> kUpdates[] = {
    {config::OffloadDevice::none, config::OffloadUpdate::automatic},
    {config::OffloadDevice::cpu, config::OffloadUpdate::automatic},
    {config::OffloadDevice::cpu, config::OffloadUpdate::host},
    {config::OffloadDevice::cpu, config::OffloadUpdate::device}};

class CudaEngine : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    set_cuda_environment(RanksHere::several);
    const CudaStatus status = cuda_status();
    if (status.gpus.empty()) GTEST_SKIP() << "no GPU: " << status.problem;
  }
  runtime::EngineOptions options() const { return {.device = GetParam()}; }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaEngine);
INSTANTIATE_TEST_SUITE_P(On, CudaEngine, ::testing::ValuesIn(gpus()),
                         [](const auto&) { return std::string("cuda"); });

// fp32 on both sides: only the order of sums differs, and Adam's first steps amplify differences of tiny
// gradients.
void expect_near(const Training& got, const Training& want, double bound) {
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, bound) << "step " << s;
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 10 * bound) << "step " << s;
  }
}

TEST_P(CudaEngine, TrainsAsTheCpuDoesWithTheSameBitsAtEveryStageAndPlacement) {
  constexpr int kSteps = 5;
  for (int ranks : {1, 2, 4}) {
    auto model = [] { return small_gpt(DType::fp32, 0.1f); };
    const Training on_cpu = train_on(ranks, config_for(ranks), model, kSteps);
    const Training first = train_on(ranks, config_for(ranks), model, kSteps, options());
    EXPECT_LT(first.steps.back().loss, first.steps.front().loss);
    expect_near(first, on_cpu, 1e-4);
    for (int stage : {0, 1, 2, 3})
      for (const auto& [offload, update] : kUpdates)
        for (bool overlap : {false, true}) {
          // The automatic choice is one of the two others.
          const bool offloads = offload != config::OffloadDevice::none;
          if (offloads && update == config::OffloadUpdate::automatic && (ranks != 2 || stage != 2)) continue;
          const auto other = stage % 2 ? config::OffloadUpdate::device : config::OffloadUpdate::host;
          if (ranks == 4 && (!overlap || (offloads && update == other))) continue;
          config::DsConfig c = config_for(ranks);
          c.zero.stage = stage, c.zero.overlap_comm = overlap, c.zero.offload_optimizer.device = offload;
          c.offload_update = update;
          c.zero.offload_optimizer.pin_memory = stage != 1;
          const Training got = train_on(ranks, c, model, kSteps, options());
          SCOPED_TRACE(fmt::format("{} ranks, stage {}, offload {}, update {}, overlap {}", ranks, stage,
                                   offload, update, overlap));
          for (size_t s = 0; s < got.steps.size(); ++s)
            ASSERT_EQ(got.steps[s].loss, first.steps[s].loss) << s;
          ASSERT_EQ(got.weights, first.weights);
        }
  }
}

TEST_P(CudaEngine, GrowsTextsWithTheLogitsOfWholeWindows) {
  for (const Layout& l : {Layout{}, Layout{.pipe = 2}, Layout{.data = 2, .zero = 3}, Layout{.tensor = 2}})
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      runtime::EngineOptions o = options();
      o.inference = true, o.texts = 2;
      runtime::Engine engine(config_of(l, 1), cut_llama(true), world, o);
      engine.set_parameters([](const ParamSpec& p) {
        std::vector<float> values(size_t(p.whole_numel()));
        for (size_t i = 0; i < values.size(); ++i) values[i] = float(i * 37 % 101) / 101 - 0.5f;
        return values;
      });
      std::vector<int32_t> window{3, 1, 4, 1, 5, 2, 6, 5};
      for (int64_t length = 3; length <= kTokens; ++length) {
        const Range news{length == 3 ? 0 : length - 1, length};
        const std::vector<int32_t> tokens(window.begin() + news.begin, window.begin() + news.end);
        const std::vector<float> got = engine.extend({{0, news.begin, tokens}, {1, news.begin, tokens}}),
                                 want = engine.predict(batch_of(window, window), Range{length - 1, length});
        ASSERT_EQ(got.size(), 2 * want.size());
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want[i % want.size()], 1e-4) << l.text() << " length " << length;
      }
    });
}

TEST_P(CudaEngine, TrainsInSixteenBitsAsTheCpuDoes) {
  for (const auto& [precision, type] :
       {std::pair{config::Precision::bf16, DType::bf16}, {config::Precision::fp16, DType::fp16}}) {
    config::DsConfig c = config_for(2);
    c.precision = precision, c.fp16.enabled = precision == config::Precision::fp16,
    c.fp16.initial_scale_power = 8;
    c.zero.stage = 2;
    auto model = [type = type] { return small_gpt(type); };
    expect_near(train_on(2, c, model, 8, options()), train_on(2, c, model, 8), 3e-2);
  }
}

TEST_P(CudaEngine, TrainsAModelThatIsCutAsTheCpuDoes) {
  for (const Layout& l : {Layout{.pipe = 2},
                          {.pipe = 2, .data = 2, .zero = 1, .schedule = "zb-h1"},
                          {.pipe = 2, .tensor = 2, .schedule = "interleaved", .offload = true},
                          {.tensor = 2, .zero = 3, .cut_rows = false},
                          {.data = 2, .tensor = 2, .zero = 3, .offload = true},
                          {.data = 2, .zero = 2, .sequence = 2, .clips = false}}) {
    SCOPED_TRACE(l.text());
    config::DsConfig c = config_of(l, 3);
    c.optimizer.eps = 1e-2;
    expect_near(train_on_all(l, c, cut_gpt(true), 3, options()), train_on_all(l, c, cut_gpt(true), 3), 1e-4);
  }
}

TEST_P(CudaEngine, SkipsTheSameOverflowingStepsAsTheCpu) {
  for (const int stage : {0, 1, 2, 3})
    for (const config::OffloadDevice offload : {config::OffloadDevice::none, config::OffloadDevice::cpu}) {
      config::DsConfig c = config_for(2);
      c.precision = config::Precision::fp16, c.fp16.enabled = true, c.zero.stage = stage;
      c.fp16.initial_scale_power = 24, c.fp16.loss_scale_window = 3, c.fp16.hysteresis = 2;
      if (stage > 0) c.zero.offload_optimizer.device = offload;
      auto model = [] { return small_gpt(DType::fp16); };
      const Training got = train_on(2, c, model, 24, options()), want = train_on(2, c, model, 24);
      SCOPED_TRACE(fmt::format("stage {}, offload {}", stage, offload));
      EXPECT_GT(want.steps.back().skipped_total, 2);
      for (size_t s = 0; s < want.steps.size(); ++s) {
        ASSERT_EQ(got.steps[s].skipped, want.steps[s].skipped) << s;
        ASSERT_EQ(got.steps[s].loss_scale, want.steps[s].loss_scale) << s;
      }
    }
}

TEST_P(CudaEngine, RecomputesAndSumsExactlyWithTheSameBits) {
  auto model = [] { return small_gpt(); };
  config::DsConfig one = config_for(1, 1, 4);
  one.exact_sums = true;
  const Training want = train_on(1, one, model, 4, options());
  for (int stage : {0, 2, 3})
    for (const config::CheckpointingConfig& way :
         {config::CheckpointingConfig{}, config::CheckpointingConfig{.interval = 1},
          config::CheckpointingConfig{.lean = true},
          config::CheckpointingConfig{.interval = 1, .to_host = true}}) {
      config::DsConfig c = config_for(2, 1, 2);
      c.exact_sums = true, c.zero.stage = stage, c.checkpointing = way;
      const Training got = train_on(2, c, model, 4, options());
      SCOPED_TRACE(fmt::format("stage {} interval {} lean {}", stage, way.interval, way.lean));
      ASSERT_EQ(got.weights, want.weights);
      ASSERT_EQ(got.steps.back().loss, want.steps.back().loss);
    }
}

// State in a file, parameters in host memory, partial offload and exact sums, updated on either side.
TEST_P(CudaEngine, UpdatesOffloadedStateOnEitherSideWithTheSameBits) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("cleave cuda disk {}", getpid());
  fs::create_directories(folder);
  auto model = [] { return small_gpt(); };
  for (const bool exact : {false, true}) {
    config::DsConfig c = config_for(2);
    c.zero.stage = 3, c.zero.overlap_comm = true, c.exact_sums = exact, c.gradient_clipping = 0;
    const Training want = train_on(2, c, model, 4, options());
    for (const config::OffloadDevice offload :
         {config::OffloadDevice::none, config::OffloadDevice::cpu, config::OffloadDevice::nvme})
      for (const double ratio : {1.0, 0.3})
        for (const config::OffloadDevice param : {config::OffloadDevice::none, config::OffloadDevice::cpu})
          for (const config::OffloadUpdate update :
               {config::OffloadUpdate::host, config::OffloadUpdate::device}) {
            const bool plain = ratio == 1 && update == config::OffloadUpdate::host;
            if (offload == config::OffloadDevice::none && !plain)
              continue;  // neither setting has an effect
                         // there
            config::OffloadConfig& o = c.zero.offload_optimizer;
            o.device = offload, o.ratio = ratio, o.nvme_path = folder, c.zero.sub_group_size = 500;
            c.zero.offload_param.device = param, c.offload_update = update;
            SCOPED_TRACE(fmt::format("exact {} offload {} ratio {} parameters {} update {}", exact, offload,
                                     ratio, param, update));
            const Training got = train_on(2, c, model, 4, options());
            ASSERT_EQ(got.weights, want.weights);
          }
  }
  fs::remove_all(folder);
}

// Micro-batches that write gradients, add to them and hand them over; updates during the last backward and
// after it; one stream and two.
TEST_P(CudaEngine, TrainsTheSameBitsWithItsPassesAsGraphs) {
  struct Way {
    int stage, accumulation;
    bool overlap;
    double clipping;
    int interval;
  };
  const Way one{0, 1, false, 0, 0}, more{0, 3, true, 0, 1}, cut{3, 1, false, 1, 0},
      more_cut{3, 3, true, 1, 1};
  const struct {
    config::Precision precision;
    DType type;
    std::vector<Way> ways;
  } all[] = {{config::Precision::fp32, DType::fp32, {one, more, cut, more_cut}},
             {config::Precision::bf16, DType::bf16, {more, cut}},
             {config::Precision::fp16, DType::fp16, {one, more_cut}}};
  for (const auto& [precision, type, ways] : all)
    for (const Way& way : ways) {
      auto model = [type = type] { return small_gpt(type, 0.1f); };
      config::DsConfig c = config_for(1, 2, way.accumulation);
      c.precision = precision, c.fp16.enabled = precision == config::Precision::fp16,
      c.check_grad_overflow = false;
      c.zero.stage = way.stage, c.zero.overlap_comm = way.overlap, c.gradient_clipping = way.clipping;
      c.checkpointing.interval = way.interval, c.cuda_graphs = config::Switch::off;
      const Training want = train_on(1, c, model, 10, options());
      for (const config::Switch use : {config::Switch::on, config::Switch::automatic}) {
        c.cuda_graphs = use;
        const Training got = train_on(1, c, model, 10, options());
        SCOPED_TRACE(fmt::format("{}, stage {}, {} micro-batches, graphs {}", name_of(type), way.stage,
                                 way.accumulation, use));
        for (size_t s = 0; s < got.steps.size(); ++s) ASSERT_EQ(got.steps[s].loss, want.steps[s].loss) << s;
        ASSERT_EQ(got.weights, want.weights);
      }
    }
}

TEST_P(CudaEngine, FreesTheMemoryOfStatesThatMoveToHostMemory) {
  for (int stage : {0, 2, 3}) {
    std::vector<float> want;
    for (const bool moves : {false, true})
      comm::run_ranks(1, [&](comm::Communicator& world) {
        config::DsConfig c = config_for(1);
        c.zero.stage = stage, c.gradient_clipping = 0, c.precision = config::Precision::bf16;
        const std::vector<UnitSpec> units = {{"a", {{"a.weight", {64, 96}, {}, true}}}};
        runtime::UnitEngine engine(c, "tiny", units, world, {.engine = options()});
        for (int step = 0; step < 3; ++step) {
          engine.begin_step();
          engine.begin_pass(0, true);
          std::vector<zero::GradientSlot> slots = engine.gradients(0);
          kernels::launch(kernels::Fill{.y = slots[0].tensor, .value = float(engine.scale() * (step + 1))},
                          engine.stream());
          *slots[0].written = true;
          engine.give(0), engine.complete(0), engine.end_pass();
          engine.finish_step(std::vector<double>{0.5});
          if (!moves) continue;
          const MemoryTable before = engine.memory_live();
          engine.offload_states(true, true, step == 0);
          const MemoryTable after = engine.memory_live();
          EXPECT_EQ(after.at(MemoryKind::device, Category::master), 0);
          EXPECT_EQ(after.at(MemoryKind::device, Category::optimizer_state), 0);
          EXPECT_EQ(after.total(MemoryKind::pinned) + after.total(MemoryKind::host),
                    before.total(MemoryKind::pinned) + before.total(MemoryKind::host) + 12 * 64 * 96);
          engine.parameter("a.weight", 1);
          if (step == 1) engine.reload_states();
        }
        const std::vector<float> got = engine.parameter("a.weight");
        if (moves)
          EXPECT_EQ(got, want) << "stage " << stage;
        else
          want = got;
      });
  }
}

TEST_P(CudaEngine, SaysWhyPassesAreNotGraphs) {
  runtime::EngineOptions with = options();
  const auto line = [&](int ranks, const std::function<void(config::DsConfig&)>& change) {
    std::string said;
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      config::DsConfig c = config_for(ranks);
      c.cuda_graphs = config::Switch::on;
      change(c);
      const runtime::Engine engine(c, small_gpt(), world, with);
      if (world.rank() == 0) said = engine.notes().graphs;
    });
    return said;
  };
  EXPECT_EQ(line(1, [](config::DsConfig&) {}), "CUDA graphs: one per pass");
  EXPECT_EQ(line(1, [](config::DsConfig& c) { c.cuda_graphs = config::Switch::off; }), "");
  EXPECT_NE(line(2, [](config::DsConfig&) {}).find("not used"), std::string::npos);
  EXPECT_NE(line(1,
                 [](config::DsConfig& c) {
                   c.zero.stage = 1, c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
                 })
                .find("offloaded"),
            std::string::npos);
  with.cuda_stream = nullptr;  // PyTorch's default stream
  EXPECT_NE(line(1, [](config::DsConfig&) {}).find("default stream"), std::string::npos);
}

TEST_P(CudaEngine, ExplainsTheUpdateSideOfOffloadedState) {
  comm::run_ranks(1, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(1);
    EXPECT_EQ(runtime::Engine(c, small_gpt(), world, options()).notes().update, "");
    c.zero.offload_optimizer.device = config::OffloadDevice::cpu;
    EXPECT_NE(runtime::Engine(c, small_gpt(), world, options()).notes().update.find("bytes of state at"),
              std::string::npos);
    c.offload_update = config::OffloadUpdate::device;
    EXPECT_EQ(runtime::Engine(c, small_gpt(), world, options()).notes().update, "");
  });
}

TEST_P(CudaEngine, PeakMemoryEqualsThePlanToTheByte) {
  for (int stage : {0, 3})
    for (const auto& [offload, update] : kUpdates)
      comm::run_ranks(2, [&, offload = offload, update = update](comm::Communicator& world) {
        config::DsConfig c = config_for(2);
        c.zero.stage = stage, c.zero.offload_optimizer.device = offload, c.offload_update = update;
        runtime::Engine engine(c, small_gpt(), world, options());
        Tokens tokens(1);
        engine.train_batch(source(tokens, c, 0, world.rank(), 2));
        EXPECT_EQ(engine.memory_peak(), engine.memory_planned())
            << "stage " << stage << " offload " << name_of(offload);
        EXPECT_GT(engine.memory_peak().total(MemoryKind::pinned), 0);
      });
}

TEST_P(CudaEngine, ResumesItsOwnCheckpointBitForBitAndTheCpuReadsIt) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("cleave cuda test {}", getpid());
  for (const config::OffloadDevice offload : {config::OffloadDevice::none, config::OffloadDevice::cpu}) {
    fs::remove_all(folder);
    comm::run_ranks(2, [&](comm::Communicator& world) {
      config::DsConfig c = config_for(2);
      c.zero.stage = 3, c.zero.offload_optimizer.device = offload;
      Tokens tokens(1);
      auto step = [&](runtime::Engine& e) {
        return e.train_batch(source(tokens, c, e.step(), world.rank(), 2)).loss;
      };
      runtime::Engine unbroken(c, small_gpt(), world, options());
      for (int i = 0; i < 3; ++i) step(unbroken);
      unbroken.save_checkpoint(folder, "step3");
      runtime::Engine resumed(c, small_gpt(), world, {.seed = 99, .device = GetParam()});
      runtime::Engine on_cpu(c, small_gpt(), world, {.seed = 98});
      resumed.load_checkpoint(folder), on_cpu.load_checkpoint(folder);
      EXPECT_EQ(weights_of(on_cpu), weights_of(unbroken));
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(step(resumed), step(unbroken)) << name_of(offload) << " step " << i;
      EXPECT_EQ(weights_of(resumed), weights_of(unbroken));
    });
  }
  fs::remove_all(folder);
}

TEST_P(CudaEngine, EvaluatesPredictsAndTakesWeightsAsTheCpuDoes) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = config_for(2);
    c.zero.stage = 3;
    Tokens tokens(1);
    runtime::Engine gpu(c, small_gpt(), world, options()), cpu(c, small_gpt(), world, {.seed = 7});
    cpu.set_parameters([w = weights_of(gpu)](const ParamSpec& p) { return w.at(p.name); });
    const BatchSource data = source(tokens, c, 0, world.rank(), 2);
    EXPECT_NEAR(gpu.evaluate(data, 2).loss, cpu.evaluate(data, 2).loss, 1e-5);
    const std::vector<float> got = gpu.predict(data(0)), want = cpu.predict(data(0));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5);
  });
}

TEST_P(CudaEngine, NamesATokenOutsideTheVocabulary) {
  const auto world = comm::self_communicator();
  const config::DsConfig c = config_for(1);
  runtime::Engine engine(c, small_gpt(), *world, options());
  Tokens tokens(1, kSeq, kVocab + 40);
  expect_error(Exit::data, {}, [&] {
    for (int step = 0; step < 10; ++step) engine.train_batch(source(tokens, c, step, 0, 1));
  });
}

}  // namespace
}  // namespace cleave::testing
