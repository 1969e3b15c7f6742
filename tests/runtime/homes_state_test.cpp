// Memory of off-device weights and gradients by place, missing or failing disks, and checkpoints across
// homes.
#include <gtest/gtest.h>

#include "offload/disk_file.h"
#include "tests/runtime/homes.h"
#include "tests/sampled.h"
#include "tests/scratch.h"
#include "zero/flat_layout.h"
#include "zero/update_times.h"

namespace cleave::testing {
namespace {

// The moved bytes are exactly those missing on the device; they are replaced by the memory of gathered layers
// and the buckets.
TEST(Homes, TakeTheBytesThatLeaveTheDevice) {
  for (int ranks : {1, 2, 3})
    for (const config::Precision precision : {config::Precision::fp32, config::Precision::bf16})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        config::DsConfig c = in_type(config_for(ranks), precision);
        c.zero.stage = 3;
        auto table = [&](const Homes& h) {
          return runtime::Engine(with(c, h), small_gpt(type_of(precision)), world, {}).memory_live();
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
          // An fp32 weight has a separate master only if their homes differ.
          const int64_t numel = none.at(device, Category::optimizer_state) / 8;
          const bool is_weight = precision == config::Precision::fp32 && h.parameters == h.optimizer;
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

// Without a link nothing is measured, copied or reported.
TEST(Homes, UpdateOnTheHostByDefaultOnACpuRank) {
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = with(config_for(2), {.optimizer = true});
    auto table = [&](config::OffloadUpdate where) {
      c.offload_update = where;
      runtime::Engine engine(c, small_gpt(), world, {});
      EXPECT_EQ(engine.notes().update, "");
      EXPECT_GT(engine.update_bytes().state, 0);
      return engine.memory_live();
    };
    const MemoryTable host = table(config::OffloadUpdate::host);
    EXPECT_EQ(table(config::OffloadUpdate::automatic), host);
    EXPECT_GT(table(config::OffloadUpdate::device).at(MemoryKind::device, Category::staging),
              host.at(MemoryKind::device, Category::staging));
  });
}

TEST(Homes, OnDiskTakeTheirShardsInPagesAndBuffersOfTheLargestOfThem) {
  for (const int ranks : {1, 2})
    for (const int64_t kept : {0, 500, 1'000'000})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        config::DsConfig c = config_for(ranks);
        c.zero.stage = 3;
        runtime::Engine engine(with(c, {.parameters = true, .disk = true, .kept_numel = kept, .buffers = 3}),
                               small_llama(), world, {});
        int64_t left = kept, in_host = 0, on_disk = 0, largest = 0;
        for (const UnitSpec& u : engine.model().units()) {
          const int64_t shard = zero::FlatLayout(u, ranks).numel() / ranks;
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

// All ranks check the disk together, including ranks without state there.
TEST(Homes, MayBeInMemoryOnOneStageAndOnDiskOnAnother) {
  bool stages_differed = false;
  for (int64_t kept = 3000; kept <= 9000; kept += 500) {
    config::DsConfig c = config_for(1);
    c.zero.stage = 3, c.pipeline.stages = 2;
    const config::DsConfig away = with(c, {.parameters = true, .disk = true, .kept_numel = kept});
    std::vector<int64_t> on_disk(2);
    std::vector<std::string> said(2);
    comm::run_ranks(2, [&](comm::Communicator& world) {
      runtime::Engine engine(away, deep_gpt(true), world, {});
      runtime::Engine in_memory(c, deep_gpt(true), world, {});
      on_disk[size_t(world.rank())] = engine.memory_live().total(MemoryKind::disk);
      said[size_t(world.rank())] = engine.notes().disk;
      Tokens tokens(1);
      EXPECT_EQ(engine.train_batch(source(tokens, c, 0, 0, 1)).loss,
                in_memory.train_batch(source(tokens, c, 0, 0, 1)).loss);
    });
    for (const std::string& line : said) {
      const bool unused = line.find(fmt::format("nvme_path is not used: offload_param.max_in_cpu ({} ",
                                                kept)) != std::string::npos;
      EXPECT_EQ(unused, on_disk[0] + on_disk[1] == 0) << line;
      EXPECT_EQ(line.find("a rank reads") != std::string::npos, !unused) << line;
    }
    stages_differed |= (on_disk[0] > 0) != (on_disk[1] > 0);
  }
  EXPECT_TRUE(stages_differed);
}

TEST(Homes, OnADiskThatIsNotThereAreRefusedByTheKey) {
  config::DsConfig c = with(config_for(1), {.parameters = true, .disk = true});
  c.zero.stage = 3, c.zero.offload_param.nvme_path = "/dev/null/below";
  expect_error(Exit::usage, {"offload_param.nvme_path"}, [&] {
    train_on(
        1, c, [] { return small_gpt(); }, 1);
  });
}

// Returns the only open file of this process in the folder.
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
  config::DsConfig c = with(config_for(1), {.parameters = true, .disk = true});
  c.zero.stage = 3, c.zero.offload_param.nvme_path = disk.folder();
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(c, small_gpt(), world, kWorkers);
    Tokens tokens(1);
    engine.train_batch(source(tokens, c, 0, 0, 1));
    engine.evaluate(source(tokens, c, 1, 0, 1), 1);
    std::filesystem::resize_file(descriptor_in(disk.folder()), 8192);
    auto expect_fault = [&](const std::function<void()>& work) {
      expect_error(Exit::training, {"the parameters of rank 0", "reading at byte 8192"}, [&] { work(); });
    };
    expect_fault([&] { engine.evaluate(source(tokens, c, 1, 0, 1), 1); });
    expect_fault([&] { engine.train_batch(source(tokens, c, 1, 0, 1)); });
  });
}

TEST(Homes, MoveCheckpointsFromAnyToAny) {
  const Scratch scratch;
  config::DsConfig plain = in_type(config_for(2, 1, 2), config::Precision::bf16);
  plain.zero.stage = 3, plain.zero.overlap_comm = true;
  std::vector<Homes> homes = all_homes();
  homes.insert(homes.begin(), Homes{});
  const Weights want = train_on(
                           2, plain, [] { return small_gpt(DType::bf16); }, 4)
                           .weights;
  Sampled sampled;
  for (const Homes& from : homes)
    for (const Homes& to : homes) {
      if (!sampled.next()) continue;
      comm::run_ranks(2, [&](comm::Communicator& world) {
        Tokens tokens(1);
        auto two_steps = [&](runtime::Engine& e) {
          for (int i = 0; i < 2; ++i) e.train_batch(source(tokens, plain, e.step(), world.rank(), 2));
        };
        runtime::Engine first(with(plain, from), small_gpt(DType::bf16), world, kWorkers);
        two_steps(first);
        first.save_checkpoint(scratch.folder(), "half");
        runtime::Engine second(with(plain, to), small_gpt(DType::bf16), world,
                               {.seed = 7, .compute = Stream::Mode::worker});
        second.load_checkpoint(scratch.folder());
        two_steps(second);
        EXPECT_EQ(weights_of(second), want) << text_of(from, plain) << " to " << text_of(to, plain);
      });
    }
}

// Each rank's parameters take 0.75 of the free space: one rank fits, two do not.
TEST(Homes, ParametersAloneOnADiskAreRefusedBySumOfTheRanks) {
  const int64_t free = offload::disk_space(folder().folder(), "").available, columns = 1 << 14;
  for (int ranks : {2, 3}) {
    config::DsConfig c = with(config_for(ranks), Homes{.parameters = true, .disk = true});
    c.zero.stage = 3;
    const int64_t rows = int64_t(0.75 * double(free)) / 4 * ranks / columns;
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      expect_error(Exit::memory,
                   {"zero_optimization.offload_param.nvme_path", folder().folder().string(),
                    fmt::format("the parameters of {} of the ranks and their other files there, but", ranks),
                    "available"},
                   [&] {
                     runtime::Engine(c, model::make_mlp({{rows, columns, 2}}, DType::fp32), world, {});
                   });
    });
  }
}

}  // namespace
}  // namespace cleave::testing
