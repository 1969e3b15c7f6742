// Weights and gradients whose home is not the device: the same bits, the memory that was planned, checkpoints
// that move between homes.
#include <gtest/gtest.h>

#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

// Gradients live with the optimizer's state.
struct Homes {
  bool parameters = false, optimizer = false, pinned = true;
  bool disk = false;       // of the parameters
  int64_t kept_numel = 0;  // in host memory all the same
  int buffers = 2;
  bool state_on_disk = false;
};
std::vector<Homes> all_homes() {
  return {{.parameters = true},
          {.optimizer = true},
          {.parameters = true, .optimizer = true},
          {.parameters = true, .optimizer = true, .pinned = false},
          {.parameters = true, .disk = true},
          {.parameters = true, .optimizer = true, .disk = true, .kept_numel = 1500, .buffers = 4},
          {.parameters = true, .optimizer = true, .disk = true, .state_on_disk = true}};
}

const Scratch& folder() {
  static const Scratch scratch;
  return scratch;
}

DsConfig with(DsConfig c, const Homes& h) {
  OffloadParamConfig& p = c.zero.offload_param;
  if (h.parameters) p.device = h.disk ? "nvme" : "cpu";
  p.nvme_path = folder().folder(), p.max_in_cpu = h.kept_numel, p.buffer_count = h.buffers;
  OffloadConfig& o = c.zero.offload_optimizer;
  if (h.optimizer) o.device = h.state_on_disk ? "nvme" : "cpu";
  o.nvme_path = p.nvme_path, c.zero.sub_group_size = 700;
  p.pin_memory = o.pin_memory = h.pinned;
  return c;
}

DsConfig in_type(DsConfig c, Precision precision) {
  c.precision = precision;
  c.fp16.enabled = precision == Precision::fp16, c.fp16.initial_scale_power = 8;
  return c;
}
DType type_of(Precision p) {
  return p == Precision::fp32 ? DType::fp32 : p == Precision::bf16 ? DType::bf16 : DType::fp16;
}

std::string text_of(const Homes& h, const DsConfig& c) {
  return fmt::format("parameters {} optimizer {} pinned {} disk {} {} stage {} overlap {} prefetch {}",
                     h.parameters, h.optimizer, h.pinned, h.disk, h.state_on_disk, c.zero.stage,
                     c.zero.overlap_comm, c.zero.stage3_prefetch_bucket_size);
}

constexpr EngineOptions kWorkers{.compute = Stream::Mode::worker};

// Trains like train_on, and expects the plan to be the peak on every rank.
Training train_planned(int ranks, const DsConfig& c, const std::function<Model()>& model, int steps) {
  Training run;
  run_ranks(ranks, [&](Communicator& world) {
    Engine engine(c, model(), world, kWorkers);
    Training mine = train(engine, world, steps);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    EXPECT_EQ(engine.memory_planned(), engine.memory_live());
    if (world.rank() == 0) run = std::move(mine);
  });
  return run;
}

void expect_same_bits_in_every_home(int ranks, const DsConfig& plain, const std::function<Model()>& model,
                                    int steps) {
  const Training want = train_on(ranks, plain, model, steps);
  for (const Homes& h : all_homes()) {
    const DsConfig c = with(plain, h);
    expect_same_bits(train_planned(ranks, c, model, steps), want, text_of(h, c));
  }
}

class HomesOfTypes : public ::testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Types, HomesOfTypes,
                         ::testing::Values(Precision::fp32, Precision::bf16, Precision::fp16));

TEST_P(HomesOfTypes, GiveTheSameBitsOverStagesRanksOverlapAndPrefetch) {
  for (int ranks : {1, 2, 3})
    for (int stage : {1, 2, 3})
      for (bool overlap : {false, true})
        for (int64_t prefetch : {0, 1000}) {
          if (stage != 3 && prefetch == 0) continue;
          DsConfig c = in_type(config_for(ranks, 2, 3), GetParam());
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
      DsConfig c = in_type(config_for(ranks, 1, 2), GetParam());
      c.zero.stage = stage, c.zero.overlap_comm = true;
      c.grad_accum_dtype = Precision::fp32, c.communication_data_type = Precision::bf16;
      expect_same_bits_in_every_home(
          ranks, c, [] { return small_gpt(type_of(GetParam())); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWhereSmallUnitsStayWhole) {
  for (int ranks : {1, 2})
    for (int64_t threshold : {50, 100'000}) {
      DsConfig c = config_for(ranks, 1, 2);
      c.zero.stage = 3, c.zero.overlap_comm = true, c.zero.stage3_param_persistence_threshold = threshold;
      expect_same_bits_in_every_home(
          ranks, c, [] { return small_llama(); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWithGroupsOfNearRanks) {
  for (const bool hybrid : {false, true})
    for (const auto wire : {Precision::fp32, Precision::bf16}) {
      DsConfig c = config_for(4, 1, 2);
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
        DsConfig c = config_for(ranks, 1, 2);
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
      DsConfig c = config_for(2, 1, 4);
      c.pipeline.stages = 2, c.pipeline.schedule = schedule;
      c.pipeline.virtual_stages = std::string(schedule) == "interleaved" ? 2 : 1;
      c.zero.stage = stage, c.zero.overlap_comm = stage == 3;
      expect_same_bits_in_every_home(
          4, c, [] { return deep_gpt(false); }, 3);
    }
}

TEST(Homes, GiveTheSameBitsWhereATensorAxisCutsLayers) {
  for (const Layout& l : {Layout{1, 1, 2, 3}, Layout{1, 2, 2, 3}, Layout{2, 1, 2, 2}, Layout{2, 2, 2, 3}}) {
    const DsConfig plain = config_of(l, 4);
    const Training want = train_on_all(l, plain, cut_llama(false), 3);
    for (const Homes& h : all_homes()) {
      const DsConfig c = with(plain, h);
      expect_same_bits(train_on_all(l, c, cut_llama(false), 3, kWorkers), want, l.text() + text_of(h, c));
    }
  }
}

TEST(Homes, SkipAnOverflowingStepAndEvaluateAlike) {
  for (const Homes& h : all_homes())
    run_ranks(2, [&](Communicator& world) {
      DsConfig c = in_type(config_for(2), Precision::fp16);
      c.zero.stage = 3, c.zero.overlap_comm = true, c.fp16.initial_scale_power = 30;
      Engine plain(c, small_gpt(DType::fp16), world, {}),
          there(with(c, h), small_gpt(DType::fp16), world, kWorkers);
      Tokens tokens(1);
      for (int step = 0; step < 3; ++step) {
        const BatchSource data = source(tokens, c, step, world.rank(), 2);
        const StepResult want = plain.train_batch(data), got = there.train_batch(data);
        EXPECT_EQ(got.skipped, want.skipped);
        EXPECT_EQ(there.evaluate(data, 2), plain.evaluate(data, 2));
        EXPECT_EQ(there.predict(data(0)), plain.predict(data(0)));
      }
      EXPECT_EQ(weights_of(there), weights_of(plain));
    });
}

// What moves is exactly what is missing on the device; what stands in for it there is the region of gathered
// layers and the buckets.
TEST(Homes, TakeWhatMovesFromTheDeviceToTheByte) {
  for (int ranks : {1, 2, 3})
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      run_ranks(ranks, [&](Communicator& world) {
        DsConfig c = in_type(config_for(ranks), precision);
        c.zero.stage = 3;
        auto table = [&](const Homes& h) {
          return Engine(with(c, h), small_gpt(type_of(precision)), world, {}).memory_live();
        };
        const MemoryTable none = table({});
        const auto device = MemoryKind::device, pinned = MemoryKind::pinned, host = MemoryKind::host;
        for (const Homes& h : all_homes()) {
          if (h.disk) continue;
          const MemoryTable t = table(h);
          const MemoryKind home = h.pinned ? pinned : host;
          auto expect_moved = [&](Category k, bool moved) {
            EXPECT_EQ(t.at(device, k), moved ? 0 : none.at(device, k)) << name_of(k);
            EXPECT_EQ(t.at(home, k), moved ? none.at(device, k) : 0) << name_of(k);
          };
          expect_moved(Category::weights, h.parameters);
          expect_moved(Category::gradients, h.optimizer);
          expect_moved(Category::optimizer_state, h.optimizer);
          // A master beside an fp32 weight is kept only where their homes differ.
          const int64_t numel = none.at(device, Category::optimizer_state) / 8;
          const bool is_weight = precision == Precision::fp32 && h.parameters == h.optimizer;
          EXPECT_EQ(t.total(Category::master), is_weight ? 0 : 4 * numel);
          EXPECT_EQ(t.at(device, Category::activations) + t.at(home, Category::activations),
                    none.at(device, Category::activations));
          if (ranks > 1) {
            EXPECT_EQ(t.at(device, Category::gathered), none.at(device, Category::gathered));
            EXPECT_EQ(t.at(device, Category::buckets), none.at(device, Category::buckets));
          } else {
            EXPECT_EQ(t.at(device, Category::gathered) > 0, h.parameters);
            EXPECT_EQ(t.at(device, Category::buckets) > 0, h.optimizer);
          }
        }
      });
}

TEST(Homes, OnDiskTakeTheirShardsInPagesAndBuffersOfTheLargestOfThem) {
  for (const int ranks : {1, 2})
    for (const int64_t kept : {0, 500, 1'000'000})
      run_ranks(ranks, [&](Communicator& world) {
        DsConfig c = config_for(ranks);
        c.zero.stage = 3;
        Engine engine(with(c, {.parameters = true, .disk = true, .kept_numel = kept, .buffers = 3}),
                      small_llama(), world, {});
        int64_t left = kept, in_host = 0, on_disk = 0, largest = 0;
        for (const UnitSpec& u : engine.model().units()) {
          const int64_t shard = FlatLayout(u, ranks).numel() / ranks;
          if (shard <= left)
            left -= shard, in_host += 4 * shard;
          else
            on_disk += round_up(4 * shard, 4096), largest = std::max(largest, shard);
        }
        const MemoryTable t = engine.memory_live();
        EXPECT_EQ(t.at(MemoryKind::device, Category::weights), 0);
        EXPECT_EQ(t.at(MemoryKind::pinned, Category::weights), in_host);
        EXPECT_EQ(t.at(MemoryKind::disk, Category::weights), on_disk);
        EXPECT_EQ(t.at(MemoryKind::pinned, Category::staging), 3 * 4 * largest);
        EXPECT_EQ(on_disk == 0, kept == 1'000'000);
        EXPECT_EQ(engine.memory_planned(), t);
      });
}

TEST(Homes, OnADiskThatIsNotThereAreRefusedByTheKey) {
  DsConfig c = with(config_for(1), {.parameters = true, .disk = true});
  c.zero.stage = 3, c.zero.offload_param.nvme_path += "/missing";
  try {
    train_on(
        1, c, [] { return small_gpt(); }, 1);
    ADD_FAILURE() << "a folder that is missing was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("offload_param.nvme_path"), std::string::npos) << e.what();
  }
}

// The one open file of this process that was made in the folder.
std::string descriptor_in(const std::filesystem::path& place) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone).string().starts_with(place.string() + "/"))
      return entry.path();
  }
  return "";
}

TEST(Homes, OnADiskThatFailsEndTheStepByName) {
  const Scratch disk;
  DsConfig c = with(config_for(1), {.parameters = true, .disk = true});
  c.zero.stage = 3, c.zero.offload_param.nvme_path = disk.folder();
  run_ranks(1, [&](Communicator& world) {
    Engine engine(c, small_gpt(), world, kWorkers);
    Tokens tokens(1);
    engine.train_batch(source(tokens, c, 0, 0, 1));
    engine.evaluate(source(tokens, c, 1, 0, 1), 1);
    std::filesystem::resize_file(descriptor_in(disk.folder()), 8192);
    auto expect_fault = [&](const std::function<void()>& work) {
      try {
        work();
        ADD_FAILURE() << "read past the end of a file";
      } catch (const Error& e) {
        EXPECT_EQ(e.exit(), Exit::training);
        for (const char* part : {"the parameters of rank 0", "reading at byte 8192"})
          EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
    };
    expect_fault([&] { engine.evaluate(source(tokens, c, 1, 0, 1), 1); });
    expect_fault([&] { engine.train_batch(source(tokens, c, 1, 0, 1)); });
  });
}

TEST(Homes, MoveCheckpointsFromAnyToAny) {
  const Scratch scratch;
  DsConfig plain = in_type(config_for(2, 1, 2), Precision::bf16);
  plain.zero.stage = 3, plain.zero.overlap_comm = true;
  std::vector<Homes> homes = all_homes();
  homes.insert(homes.begin(), Homes{});
  const Weights want = train_on(
                           2, plain, [] { return small_gpt(DType::bf16); }, 4)
                           .weights;
  for (const Homes& from : homes)
    for (const Homes& to : homes) {
      run_ranks(2, [&](Communicator& world) {
        Tokens tokens(1);
        auto two_steps = [&](Engine& e) {
          for (int i = 0; i < 2; ++i) e.train_batch(source(tokens, plain, e.step(), world.rank(), 2));
        };
        Engine first(with(plain, from), small_gpt(DType::bf16), world, kWorkers);
        two_steps(first);
        first.save_checkpoint(scratch.folder(), "half");
        Engine second(with(plain, to), small_gpt(DType::bf16), world,
                      {.seed = 7, .compute = Stream::Mode::worker});
        second.load_checkpoint(scratch.folder());
        two_steps(second);
        EXPECT_EQ(weights_of(second), want) << text_of(from, plain) << " to " << text_of(to, plain);
      });
    }
}

}  // namespace
}  // namespace cleave::testing
