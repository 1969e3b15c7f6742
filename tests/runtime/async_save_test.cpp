// Background saves through the engine: the same checkpoint as a blocking save, and the memory of the copy.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "checkpoint/digest.h"
#include "tests/plan/planned.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

config::DsConfig behind(config::DsConfig c) {
  c.checkpoint.async = true;
  return c;
}

std::map<std::string, std::string> digests_in(const fs::path& dir, const std::string& tag) {
  return checkpoint::digests(checkpoint::CheckpointReader(dir, tag), 1);
}

// Returns the contents of each shard, without the save's name.
std::vector<std::string> shards_of(const fs::path& folder, int ranks) {
  std::vector<std::string> out;
  for (int r = 0; r < ranks; ++r) {
    const checkpoint::SafetensorsFile file(folder / fmt::format("shard-{:05}.safetensors", r));
    std::string& text = out.emplace_back();
    for (const auto& [name, tensor] : file.tensors()) {
      std::vector<std::byte> bytes(size_t(tensor.end - tensor.begin));
      file.read(name, 0, bytes);
      text += fmt::format("{} at {}:", name, tensor.begin);
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  return out;
}

// Saves both ways at the same steps, while one of them continues training.
void expect_the_same(const config::DsConfig& waiting, int ranks, const std::string& layout) {
  const Scratch waits, goes_on;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    Tokens tokens(1);
    runtime::Engine plain(waiting, small_gpt(runtime::model_dtype(waiting)), world, {});
    const config::DsConfig asynchronous = behind(waiting);
    runtime::Engine engine(asynchronous, small_gpt(runtime::model_dtype(waiting)), world, {});
    std::atomic<int> written{0};
    for (int step = 0; step < 4; ++step) {
      if (step % 2) {
        plain.save_checkpoint(waits.folder(), fmt::format("step{}", step), R"({"note": 1})");
        engine.save_checkpoint(goes_on.folder(), fmt::format("step{}", step), R"({"note": 1})",
                               [&](const checkpoint::SavedCheckpoint&) { ++written; });
      }
      plain.train_batch(source(tokens, waiting, step, world.rank(), ranks));
      engine.train_batch(source(tokens, asynchronous, step, world.rank(), ranks));
    }
    engine.finish_save();
    EXPECT_FALSE(engine.save_failed());
    EXPECT_EQ(written, 2);
    EXPECT_EQ(weights_of(engine), weights_of(plain)) << layout;
    EXPECT_EQ(engine.memory_live(), engine.memory_planned());
  });
  for (const char* tag : {"step1", "step3"}) {
    EXPECT_EQ(digests_in(waits.folder(), tag), digests_in(goes_on.folder(), tag)) << layout << tag;
    EXPECT_EQ(shards_of(waits.folder() / tag, ranks), shards_of(goes_on.folder() / tag, ranks)) << layout;
    EXPECT_EQ(checkpoint::CheckpointReader(waits.folder(), tag).state(),
              checkpoint::CheckpointReader(goes_on.folder(), tag).state());
  }
}

TEST(AsyncSave, IsTheCheckpointOfASaveThatWaits) {
  const Scratch disk;
  for (const int ranks : {1, 3})
    for (const int stage : {0, 2, 3})
      for (const config::OffloadDevice home :
           {config::OffloadDevice::none, config::OffloadDevice::cpu, config::OffloadDevice::nvme}) {
        if (stage == 0 && home != config::OffloadDevice::none) continue;
        config::DsConfig c = config_for(ranks);
        c.zero.stage = stage, c.zero.offload_optimizer.device = home;
        c.zero.offload_optimizer.nvme_path = disk.folder();
        if (stage == 3) c.precision = config::Precision::bf16;
        expect_the_same(c, ranks, fmt::format("{} ranks, stage {}, home {}; ", ranks, stage, int(home)));
      }
}

// With state on disk as well: a copy in host memory, each byte on one rank.
TEST(AsyncSave, TakesMemoryForEachByteOnce) {
  const Scratch disk;
  for (const int ranks : {1, 2, 4})
    for (const int stage : {0, 1, 3})
      for (const bool away : {false, true}) {
        if (stage == 0 && away) continue;
        config::DsConfig c = config_for(ranks);
        c.zero.stage = stage;
        if (away) c.zero.offload_optimizer.device = config::OffloadDevice::nvme;
        c.zero.offload_optimizer.nvme_path = disk.folder();
        const Make model = [] { return small_gpt(); };
        const plan::JobPlan without = plan_for(c, ranks, model), with = plan_for(behind(c), ranks, model);
        int64_t copied = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          MemoryTable table = of_rank(with, rank).memory;
          copied += table.total(Category::checkpoint);
          EXPECT_EQ(table.total(Category::checkpoint), table.at(MemoryKind::host, Category::checkpoint));
          table.at(MemoryKind::host, Category::checkpoint) = 0;
          EXPECT_EQ(table, of_rank(without, rank).memory) << "nothing else changes";
        }
        EXPECT_EQ(copied, 3 * 4 * small_gpt().params()) << ranks << " ranks, stage " << stage;
        expect_planned(behind(c), ranks, model, fmt::format("async, {} ranks, stage {}", ranks, stage));
      }
}

TEST(AsyncSave, FailsAtTheStartIfTheCopyDoesNotFit) {
  const config::DsConfig c = config_for(1);
  const int64_t copy = 3 * 4 * small_gpt().params();
  comm::run_ranks(1, [&](comm::Communicator& world) {
    MemoryLimits limits;
    limits.host_bytes = copy - 1;
    runtime::Engine(c, small_gpt(), world, {.limits = limits});
    expect_error(Exit::memory, {"checkpoint", "checkpoint.async false"},
                 [&] { runtime::Engine(behind(c), small_gpt(), world, {.limits = limits}); });
    limits.host_bytes = copy;
    runtime::Engine(behind(c), small_gpt(), world, {.limits = limits});
  });
}

// The next save reports a failed one, and the training state is unaffected.
TEST(AsyncSave, TellsAllRanksOfASaveThatFailed) {
  const Scratch scratch;
  scratch.write("file", "x");
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const config::DsConfig c = behind(config_for(2));
    Tokens tokens(1);
    runtime::Engine engine(c, small_gpt(), world, {});
    engine.save_checkpoint(scratch.path("file"), "a");
    for (int step = 0; step < 3; ++step) engine.train_batch(source(tokens, c, step, world.rank(), 2));
    expect_error(Exit::checkpoint, {"not saved, earlier checkpoints are unchanged"},
                 [&] { engine.save_checkpoint(scratch.folder(), "b"); });
    engine.save_checkpoint(scratch.folder(), "b");
    engine.finish_save();
    EXPECT_EQ(checkpoint::CheckpointReader(scratch.folder(), "latest").path(), scratch.folder() / "b");
  });
}

// A save by only one rank is reported within the wait deadline.
TEST(AsyncSave, OfOneRankAloneIsNamedWithinTheDeadline) {
  for (const bool async : {false, true}) {
    const Scratch scratch;
    std::atomic<bool> heard{false};
    comm::run_ranks(2,
                    [&](comm::Communicator& world) {
                      runtime::Engine engine(async ? behind(config_for(2)) : config_for(2), small_gpt(),
                                             world, {});
                      if (world.rank() == 0) {
                        expect_error(Exit::rank_lost, {"saving checkpoint", "all ranks", "1"},
                                     [&] { engine.save_checkpoint(scratch.folder(), "a"); });
                        heard = true;
                      }
                      while (!heard) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    },
                    {.timeout = std::chrono::milliseconds(300)});
    EXPECT_TRUE(checkpoint::list_checkpoints(scratch.folder()).empty());
  }
}

}  // namespace
}  // namespace cleave::testing
