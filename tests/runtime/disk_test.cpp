// Optimizer state on disk: bit-identical to training without it, and planned to the byte.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/runtime/compare.h"
#include "tests/runtime/cut_models.h"
#include "tests/sampled.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

// Tiles of 100 elements: several per unit, and some with both kinds of decay.
config::DsConfig on_disk(config::DsConfig c, const Scratch& scratch, double ratio = 1, int64_t tile = 100,
                         config::OffloadUpdate update = config::OffloadUpdate::host) {
  config::OffloadConfig& o = c.zero.offload_optimizer;
  o.device = config::OffloadDevice::nvme, o.nvme_path = scratch.folder(), o.ratio = ratio;
  c.zero.sub_group_size = tile, c.offload_update = update;
  return c;
}

config::DsConfig with_precision(config::DsConfig c, DType type) {
  c.precision = type == DType::fp32   ? config::Precision::fp32
                : type == DType::fp16 ? config::Precision::fp16
                                      : config::Precision::bf16;
  c.fp16.enabled = type == DType::fp16, c.fp16.initial_scale_power = 8;
  return c;
}

class OnDisk : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OnDisk, ::testing::Values(1, 2, 3));

TEST_P(OnDisk, TrainingHasTheBitsOfTrainingWithoutAtEveryStageTypeAndShare) {
  const int ranks = GetParam(), steps = 6;
  Sampled sampled;
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16})
    for (const int stage : {0, 1, 2, 3}) {
      const auto model = [type] { return small_gpt(type); };
      config::DsConfig c = with_precision(config_for(ranks), type);
      c.zero.stage = stage;
      const Training want = train_on(ranks, c, model, steps);
      for (const double ratio : {1.0, 0.3})
        for (const config::OffloadUpdate update :
             {config::OffloadUpdate::host, config::OffloadUpdate::device}) {
          if (!sampled.next()) continue;
          const Scratch scratch;
          const config::DsConfig disk = on_disk(c, scratch, ratio, stage == 1 ? 1 << 20 : 100, update);
          const auto what =
              fmt::format("{} stage {} ratio {} on the {}", name_of(type), stage, ratio, update);
          expect_same_bits(train_on(ranks, disk, model, steps), want, what);
          EXPECT_TRUE(std::filesystem::is_empty(scratch.folder())) << what;
        }
    }
}

TEST_P(OnDisk, FewBuffersOverlapAndOtherOptimizersChangeNothing) {
  const int ranks = GetParam();
  const auto model = [] { return small_llama(DType::bf16); };
  for (const config::OptimizerType optimizer : {config::OptimizerType::adamw, config::OptimizerType::sgd,
                                                config::OptimizerType::lion, config::OptimizerType::adagrad})
    for (const int buffers : {1, 2, 7}) {
      const Scratch scratch;
      config::DsConfig c = with_precision(config_for(ranks), DType::bf16);
      c.zero.stage = 3, c.zero.overlap_comm = buffers != 1, c.optimizer.type = optimizer;
      if (buffers == 2) c.optimizer.momentum = 0.9;
      const Training want = train_on(ranks, c, model, 5, {.compute = Stream::Mode::worker});
      for (const config::OffloadUpdate update :
           {config::OffloadUpdate::host, config::OffloadUpdate::device}) {
        config::DsConfig disk = on_disk(c, scratch, 1, 64, update);
        disk.zero.offload_optimizer.buffer_count = buffers;
        expect_same_bits(train_on(ranks, disk, model, 5, {.compute = Stream::Mode::worker}), want,
                         fmt::format("{} with {} buffers on the {}", optimizer, buffers, update));
      }
    }
}

TEST_P(OnDisk, ExactSumsAndHostMemorySharesChangeNothing) {
  const int ranks = GetParam();
  for (const bool exact : {false, true}) {
    const Scratch scratch;
    config::DsConfig c = config_for(ranks, 1, 2);
    c.zero.stage = 2, c.exact_sums = exact;
    const auto model = [] { return small_gpt(); };
    const Training want = train_on(ranks, c, model, 5);
    for (const config::OffloadUpdate update : {config::OffloadUpdate::host, config::OffloadUpdate::device}) {
      if (exact)
        expect_same_bits(train_on(ranks, on_disk(c, scratch, 0.5, 100, update), model, 5), want,
                         "exact sums");
      config::DsConfig memory = c;
      memory.zero.offload_optimizer.device = config::OffloadDevice::cpu,
      memory.zero.offload_optimizer.ratio = 0.3;
      memory.offload_update = update;
      expect_same_bits(train_on(ranks, memory, model, 5), want, "0.3 in host memory");
    }
  }
}

TEST(OnDiskAxes, PipelinesTensorParallelLayersAndTiedUnitsChangeNothing) {
  for (const bool tied : {false, true})
    for (const int stage : {1, 3}) {
      const Layout l{2, 1, 2, stage};
      const Scratch scratch;
      const config::DsConfig c = config_of(l, 2);
      const Training want = train_on_all(l, c, cut_gpt(tied), 4);
      expect_same_bits(train_on_all(l, on_disk(c, scratch, 0.8), cut_gpt(tied), 4), want,
                       fmt::format("tied {} stage {}", tied, stage));
    }
}

TEST(OnDiskMemory, ThePlanIsThePeakAndTheShareIsExact) {
  for (const int stage : {0, 3})
    for (const double ratio : {1.0, 0.3, 0.0}) {
      const Scratch scratch;
      comm::run_ranks(2, [&](comm::Communicator& world) {
        config::DsConfig c =
            on_disk(config_for(2), scratch, ratio, 100,
                    stage == 0 ? config::OffloadUpdate::host : config::OffloadUpdate::device);
        c.zero.stage = stage;
        runtime::Engine engine(c, small_gpt(), world, {});
        Tokens tokens(1);
        engine.train_batch(source(tokens, c, 0, world.rank(), 2));
        EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
        EXPECT_EQ(engine.memory_planned(), engine.memory_live());
        std::map<std::string, int64_t> slices;
        auto add = [&](const std::vector<UnitSpec>& units) {
          const int shards = stage == 0 ? 1 : 2;
          for (const UnitSpec& u : units) slices[u.name] = zero::FlatLayout(u, shards).numel() / shards;
        };
        for (const auto& layer : engine.model().layers) add(layer->units());
        add(engine.model().head->units());
        int64_t away = 0, here = 0;
        for (const auto& [name, numel] : slices)
          away += std::llround(ratio * double(numel)), here += numel - std::llround(ratio * double(numel));
        const MemoryTable live = engine.memory_live();
        EXPECT_EQ(live.at(MemoryKind::disk, Category::master), 4 * away);
        EXPECT_GE(live.at(MemoryKind::disk, Category::optimizer_state), 8 * away);  // tiles fill whole pages
        EXPECT_EQ(live.at(MemoryKind::device, Category::optimizer_state), 8 * here);
      });
    }
}

TEST(OnDiskState, CheckpointsLoadWithAndWithoutADiskAndParametersCanBeSet) {
  const Scratch scratch, disk, other;
  for (const bool saved_on_disk : {false, true}) {
    Weights saved;
    std::vector<double> losses;
    comm::run_ranks(3, [&](comm::Communicator& world) {
      config::DsConfig c = with_precision(config_for(3), DType::bf16);
      c.zero.stage = 2;
      if (saved_on_disk) c = on_disk(c, disk, 0.7, 100, config::OffloadUpdate::device);
      runtime::Engine engine(c, small_gpt(DType::bf16), world, {});
      Tokens tokens(1);
      for (int step = 0; step < 3; ++step) engine.train_batch(source(tokens, c, step, world.rank(), 3));
      engine.save_checkpoint(scratch.folder(), saved_on_disk ? "disk" : "memory");
      const Weights mine = weights_of(engine);
      std::vector<double> next;
      for (int step = 3; step < 6; ++step)
        next.push_back(engine.train_batch(source(tokens, c, step, world.rank(), 3)).loss);
      if (world.rank() == 0) saved = mine, losses = next;
    });
    for (const double ratio : {0.0, 0.4, 1.0})
      comm::run_ranks(3, [&](comm::Communicator& world) {
        config::DsConfig c = with_precision(config_for(3), DType::bf16);
        c.zero.stage = 2;
        if (ratio > 0)
          c = on_disk(c, other, ratio, 70,
                      ratio < 1 ? config::OffloadUpdate::device : config::OffloadUpdate::host);
        runtime::Engine engine(c, small_gpt(DType::bf16), world, {.seed = 7});
        engine.load_checkpoint(scratch.folder(), saved_on_disk ? "disk" : "memory");
        EXPECT_EQ(weights_of(engine), saved);
        Tokens tokens(1);
        for (int step = 3; step < 6; ++step)
          EXPECT_EQ(engine.train_batch(source(tokens, c, step, world.rank(), 3)).loss,
                    losses[size_t(step - 3)])
              << "ratio " << ratio << " step " << step;
      });
  }
  comm::run_ranks(2, [&](comm::Communicator& world) {
    runtime::Engine engine(on_disk(config_for(2), disk, 0.5), small_gpt(), world, {});
    engine.set_parameters(
        [](const ParamSpec& p) { return std::vector<float>(size_t(p.whole_numel()), 0.25f); });
    for (const auto& [name, values] : weights_of(engine))
      EXPECT_EQ(values, std::vector<float>(values.size(), 0.25f)) << name;
  });
}

TEST(OnDiskFailure, FoldersThatCannotBeUsedAreRefusedOnEveryRankBeforeTraining) {
  const Scratch scratch;
  const std::string no_folder = scratch.write("file", "x") + "/below", made = scratch.path("made/here");
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = on_disk(config_for(2), scratch);
    c.zero.offload_optimizer.nvme_path = no_folder;
    expect_error(Exit::usage, {"rank 0", "offload_optimizer.nvme_path", "below", "Not a directory"},
                 [&] { runtime::Engine(c, small_gpt(), world, {}); });
    // Only the last rank's folder is invalid: all ranks get the error. The first rank's folder is created.
    c.zero.offload_optimizer.nvme_path = world.rank() == 1 ? no_folder : made;
    expect_error(Exit::usage, {"rank 1", "below"}, [&] { runtime::Engine(c, small_gpt(), world, {}); });
  });
  EXPECT_TRUE(std::filesystem::is_empty(made));
}

// Returns the only open file of this process in the folder.
std::string descriptor_in(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().starts_with(folder.string() + "/"))
      return entry.path();
  }
  return "";
}

TEST(OnDiskFailure, ADiskThatFailsInAStepEndsItByNameAndLeavesTheCheckpointGood) {
  const Scratch disk, scratch;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    const config::DsConfig c = on_disk(config_for(1), disk);
    Tokens tokens(1);
    Weights saved;
    {
      runtime::Engine engine(c, small_gpt(), world, {});
      engine.train_batch(source(tokens, c, 0, 0, 1));
      engine.save_checkpoint(scratch.folder(), "good");
      saved = weights_of(engine);
      std::filesystem::resize_file(descriptor_in(disk.folder()), 8192);
      expect_error(Exit::training,
                   {"the optimizer state of rank 0", disk.folder().string(), "reading at byte ", "shorter",
                    "last checkpoint"},
                   [&] { engine.train_batch(source(tokens, c, 1, 0, 1)); });
      EXPECT_THROW(engine.save_checkpoint(scratch.folder(), "bad"), Error);
    }
    runtime::Engine engine(c, small_gpt(), world, {.seed = 9});
    engine.load_checkpoint(scratch.folder());
    EXPECT_EQ(engine.step(), 1);
    EXPECT_EQ(weights_of(engine), saved);
  });
  EXPECT_TRUE(std::filesystem::is_empty(disk.folder()));
}

}  // namespace
}  // namespace cleave::testing
