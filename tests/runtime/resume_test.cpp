// Save, load and continue.
#include <gtest/gtest.h>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;

config::DsConfig config(int ranks, int stage, config::Precision precision) {
  config::DsConfig c = config_for(ranks, 1, 1);
  c.zero.stage = stage, c.precision = precision, c.fp16.enabled = precision == config::Precision::fp16;
  c.fp16.initial_scale_power = 8, c.fp16.loss_scale_window = 2;
  c.scheduler.type = config::SchedulerType::warmup_decay, c.scheduler.warmup_num_steps = 3,
  c.scheduler.total_num_steps = 12;
  c.scheduler.warmup_max_lr = 0.02;
  return c;
}

DType type_of(config::Precision p) {
  return p == config::Precision::fp32   ? DType::fp32
         : p == config::Precision::fp16 ? DType::fp16
                                        : DType::bf16;
}

TEST(Resume, ContinuesBitForBitInTheSameLayout) {
  for (const config::Precision precision :
       {config::Precision::fp32, config::Precision::fp16, config::Precision::bf16})
    for (int stage : {0, 1, 2, 3}) {
      const Scratch scratch;
      comm::run_ranks(3, [&](comm::Communicator& world) {
        const config::DsConfig c = config(3, stage, precision);
        Tokens tokens(1);
        runtime::Engine unbroken(c, small_gpt(type_of(precision)), world, {});
        std::vector<double> losses;
        double before = 0;  // loss of the next step, without dropout
        for (int step = 0; step < 8; ++step) {
          if (step == 4) {
            before = unbroken.evaluate(source(tokens, c, step, world.rank(), 3), 1).loss;
            unbroken.save_checkpoint(scratch.folder(), "step4", R"({"note": "kept"})");
          }
          losses.push_back(unbroken.train_batch(source(tokens, c, step, world.rank(), 3)).loss);
        }
        runtime::Engine resumed(c, small_gpt(type_of(precision)), world, {.seed = 99});
        EXPECT_EQ(resumed.load_checkpoint(scratch.folder()), R"({"note":"kept"})");
        EXPECT_EQ(resumed.step(), 4);
        EXPECT_EQ(resumed.evaluate(source(tokens, c, 4, world.rank(), 3), 1).loss, before);
        for (int step = 4; step < 8; ++step) {
          const runtime::StepResult r = resumed.train_batch(source(tokens, c, step, world.rank(), 3));
          EXPECT_EQ(r.loss, losses[size_t(step)]) << "stage " << stage << " step " << step;
        }
        EXPECT_EQ(weights_of(resumed), weights_of(unbroken));
      });
    }
}

TEST(Resume, LoadsAtAnotherStageAndNumberOfRanks) {
  const Scratch scratch;
  Weights saved;
  comm::run_ranks(3, [&](comm::Communicator& world) {
    const config::DsConfig c = config(3, 2, config::Precision::fp32);
    Tokens tokens(1);
    runtime::Engine engine(c, small_gpt(), world, {});
    for (int step = 0; step < 3; ++step) engine.train_batch(source(tokens, c, step, world.rank(), 3));
    engine.save_checkpoint(scratch.folder(), "a");
    const Weights w = weights_of(engine);
    if (world.rank() == 0) saved = w;
  });
  for (int ranks : {1, 2, 5})
    for (int stage : {0, 3})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        runtime::Engine engine(config(ranks, stage, config::Precision::fp32), small_gpt(), world,
                               {.seed = 5});
        engine.load_checkpoint(scratch.folder());
        EXPECT_EQ(weights_of(engine), saved);
      });
}

TEST(Resume, NamesTheDamagedTensor) {
  const Scratch scratch;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(config(1, 0, config::Precision::fp32), small_gpt(), world, {});
    engine.save_checkpoint(scratch.folder(), "a");
    const fs::path shard = scratch.folder() / "a" / "shard-00000.safetensors";
    {
      std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-3, std::ios::end);
      file.put('!');
    }
    expect_error(Exit::checkpoint, {"checksum", "exp_avg_sq/"},
                 [&] { engine.load_checkpoint(scratch.folder()); });
    fs::resize_file(shard, fs::file_size(shard) - 8);
    EXPECT_THROW(engine.load_checkpoint(scratch.folder()), Error);
    EXPECT_THROW(engine.load_checkpoint(scratch.folder(), "b"), Error);
  });
}

TEST(Resume, ASaveThatFailsLeavesTheOneBeforeItWhole) {
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    runtime::Engine engine(config(2, 1, config::Precision::fp32), small_gpt(), world, {});
    engine.save_checkpoint(scratch.folder(), "a");
    Stream stream;
    if (world.rank() == 0) std::ofstream(scratch.folder() / "file") << "in the way";
    world.barrier(stream);
    EXPECT_THROW(engine.save_checkpoint(scratch.folder() / "file", "b"), Error);
    engine.load_checkpoint(scratch.folder());
  });
}

TEST(Resume, AnOptimizerThatBeginsAnewUpdatesLikeANewOne) {
  // The reference is an engine with the same weights and without earlier steps.
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    config::DsConfig c = config(2, 1, config::Precision::fp32);
    c.scheduler.type = config::SchedulerType::constant;
    Tokens tokens(1);
    runtime::Engine trained(c, small_gpt(), world, {});
    for (int step = 0; step < 3; ++step) trained.train_batch(source(tokens, c, step, world.rank(), 2));
    trained.save_checkpoint(scratch.folder(), "a");
    const Weights start = weights_of(trained);
    runtime::Engine fresh(c, small_gpt(), world, {}), reset(c, small_gpt(), world, {}),
        later(c, small_gpt(), world, {});
    fresh.set_parameters([&](const ParamSpec& p) { return start.at(p.name); });
    reset.load_checkpoint(scratch.folder(), "a", {.optimizer = false});
    EXPECT_EQ(reset.step(), 3);
    for (int step = 0; step < 2; ++step) {
      for (runtime::Engine* e : {&fresh, &reset}) e->train_batch(source(tokens, c, step, world.rank(), 2));
      if (step == 0) {  // its own checkpoints contain the start of the optimizer state
        reset.save_checkpoint(scratch.folder(), "b");
        later.load_checkpoint(scratch.folder(), "b");
      } else {
        later.train_batch(source(tokens, c, step, world.rank(), 2));
      }
    }
    EXPECT_EQ(weights_of(reset), weights_of(fresh));
    EXPECT_EQ(weights_of(later), weights_of(fresh));
  });
}

TEST(Resume, AShardThatOneRankCannotReadIsRefusedByAll) {
  const Scratch scratch;
  std::atomic<int> refused = 0;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    runtime::Engine engine(config(2, 3, config::Precision::fp32), small_gpt(), world, {});
    engine.save_checkpoint(scratch.folder(), "a");
    engine.save_checkpoint(scratch.folder(), "b");
    if (world.rank() == 1) {
      std::fstream file(scratch.folder() / "b" / "shard-00001.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-3, std::ios::end);
      file.put('!');
    }
    Stream stream;
    world.barrier(stream);
    try {
      engine.load_checkpoint(scratch.folder(), "b");
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::checkpoint) << e.what();
      EXPECT_NE(std::string(e.what()).find("checksum"), std::string::npos) << e.what();
      ++refused;
    }
    engine.load_checkpoint(scratch.folder(), "a");
  });
  EXPECT_EQ(refused, 2);
}

TEST(Resume, AnotherModelIsRefusedByName) {
  const Scratch scratch;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    runtime::Engine engine(config(1, 0, config::Precision::fp32), small_gpt(), world, {});
    engine.save_checkpoint(scratch.folder(), "a");
    runtime::Engine other(config(1, 0, config::Precision::fp32), model::make_mlp({{4, 3, 2}}, DType::fp32),
                          world, {});
    expect_error(Exit::checkpoint, {"dense.0.weight"}, [&] { other.load_checkpoint(scratch.folder()); });
  });
}

}  // namespace
}  // namespace cleave::testing
