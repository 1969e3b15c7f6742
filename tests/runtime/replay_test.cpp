// Records of steps, and their replay by one rank alone.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "runtime/replay/call_player.h"
#include "runtime/replay/call_recorder.h"
#include "tests/runtime/cut_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

namespace fs = std::filesystem;
using runtime::Engine;
using runtime::StepRecord;

constexpr int kRecorded = 3;  // 0-based step

fs::path folder_of(const Scratch& scratch, int rank) {
  const fs::path folder = fs::path(scratch.folder()) / fmt::format("rank-{}", rank);
  fs::create_directories(folder);
  return folder;
}

// Flips the lowest bit of an element of this rank's master.
void flip_a_bit(Engine& engine, bool here) {
  const std::string name = engine.trained().front();
  std::vector<float> values = engine.parameter(name);
  for (float& v : values)
    if (here) v = std::bit_cast<float>(std::bit_cast<uint32_t>(v) ^ 1u);
  engine.write_parameter(name, values);
}

// Trains four steps and records the last; the memory of `faulty` changes after its state is recorded.
void record(const Scratch& scratch, const Layout& l, const runtime::ModelFactory& model,
            comm::Communicator& world, const config::DsConfig& c, int faulty = -1) {
  runtime::CallRecorder recorder({});
  const auto tapped = comm::tapped_communicator(world, recorder);
  recorder.record_in_memory();
  Engine engine(c, model, *tapped, {});
  StepRecord record;
  record.setup = recorder.stop();
  const std::vector<std::byte> setup = recorder.in_memory();
  Tokens tokens(c.train_micro_batch_size_per_gpu, kTokens);
  const auto data = [&](int step) { return source(tokens, c, step, engine.place().data, l.data); };
  for (int step = 0; step < kRecorded; ++step) engine.train_batch(data(step));
  const fs::path folder = folder_of(scratch, world.rank());
  engine.save_own_state(folder.string(), StepRecord::kState);
  if (faulty >= 0) flip_a_bit(engine, world.rank() == faulty);
  recorder.record_in_file(folder / StepRecord::kCalls);
  recorder.add(setup.data(), int64_t(setup.size()));
  engine.publish_parameters();
  engine.train_batch(data(kRecorded));
  engine.synchronize();
  record.step = recorder.stop();
  record.after = engine.own_state_sums();
  runtime::write_record(folder, record);
}

struct Replayed {
  size_t calls = 0;
  std::vector<size_t> differing;
  std::vector<std::string> described;
  bool same_state = true;
};

Replayed replay(const Scratch& scratch, const Layout& l, const runtime::ModelFactory& model,
                const config::DsConfig& c, int rank) {
  const fs::path folder = folder_of(scratch, rank);
  const StepRecord record = runtime::read_record(folder);
  runtime::CallPlayer player(folder, {});
  const auto alone = comm::lone_communicator(rank, l.ranks(), player);
  player.play(record.setup, false);
  Engine engine(c, model, *alone, {.seed = 5});  // the seed is in the state
  engine.load_own_state(folder.string(), StepRecord::kState);
  player.play(record.step, true);
  engine.publish_parameters();
  Tokens tokens(c.train_micro_batch_size_per_gpu, kTokens);
  engine.train_batch(source(tokens, c, kRecorded, engine.place().data, l.data));
  engine.synchronize();
  Replayed out{.calls = player.made(), .differing = player.differing(), .described = {}};
  EXPECT_EQ(out.calls, record.step.size());
  for (const size_t n : out.differing) out.described.push_back(record.step[n].describe(n));
  out.same_state = engine.own_state_sums() == record.after;
  return out;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {{1, 2, 1, 0},
                                          {1, 2, 1, 1},
                                          {1, 3, 1, 2},
                                          {1, 2, 1, 3},
                                          {1, 2, 1, 1, "1f1b", false, true, 1, false},
                                          {2, 1, 1, 0},
                                          {2, 2, 1, 3, "interleaved"},
                                          {1, 1, 2, 0},
                                          {1, 2, 2, 3},
                                          {1, 1, 2, 1, "1f1b", false, false},
                                          {1, 1, 1, 1, "1f1b", false, true, 2},
                                          {1, 2, 1, 2, "1f1b", true},
                                          {2, 1, 2, 1, "1f1b", true},
                                          {}};
  return all;
}

TEST(Replay, EveryRankAloneComputesTheSameBitsInEveryLayout) {
  for (const Layout& l : layouts()) {
    const config::DsConfig c = config_of(l, 4);
    const runtime::ModelFactory model = cut_gpt(true, DType::fp32, 0.1f);
    const Scratch scratch;
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) { record(scratch, l, model, world, c); });
    for (int rank = 0; rank < l.ranks(); ++rank) {
      const Replayed seen = replay(scratch, l, model, c, rank);
      EXPECT_EQ(seen.described, std::vector<std::string>()) << l.text() << " rank " << rank;
      EXPECT_TRUE(seen.same_state) << l.text() << " rank " << rank;
      EXPECT_EQ(seen.calls > 0, l.ranks() > 1) << l.text();
    }
  }
}

TEST(Replay, BothSixteenBitTypesAndTheirLossScales) {
  for (const config::Precision precision : {config::Precision::fp16, config::Precision::bf16})
    for (const int stage : {1, 3}) {
      const Layout l{1, 2, 1, stage};
      config::DsConfig c = config_of(l, 2);
      c.precision = precision, c.fp16.enabled = precision == config::Precision::fp16;
      c.fp16.initial_scale_power = 8, c.fp16.loss_scale_window = 2;
      const runtime::ModelFactory model = cut_gpt(true, runtime::model_dtype(c));
      const Scratch scratch;
      comm::run_ranks(2, [&](comm::Communicator& world) { record(scratch, l, model, world, c); });
      for (int rank = 0; rank < 2; ++rank) {
        const Replayed seen = replay(scratch, l, model, c, rank);
        EXPECT_TRUE(seen.differing.empty() && seen.same_state) << stage << " rank " << rank;
      }
    }
}

// The faulty rank sends other gradients; a rank that only receives them is not accused.
TEST(Replay, AFlippedBitIsFoundInTheFirstCallOfTheFaultyRank) {
  for (const int stage : {0, 1, 3}) {
    const Layout l{1, 2, 1, stage};
    config::DsConfig c = config_of(l, 1);
    c.replica_check_steps = 0;
    const runtime::ModelFactory model = cut_gpt(true);
    const Scratch scratch;
    comm::run_ranks(2, [&](comm::Communicator& world) { record(scratch, l, model, world, c, 1); });
    const Replayed innocent = replay(scratch, l, model, c, 0), faulty = replay(scratch, l, model, c, 1);
    EXPECT_EQ(innocent.described, std::vector<std::string>()) << stage;
    EXPECT_TRUE(innocent.same_state) << stage;
    ASSERT_FALSE(faulty.differing.empty()) << stage;
    EXPECT_NE(faulty.described.front().find(stage == 0 ? "all_reduce of " : "all_gather of "),
              std::string::npos)
        << faulty.described.front();
    EXPECT_FALSE(faulty.same_state) << stage;
  }
}

TEST(Replay, DamagedRecordsAreErrorsThatNameTheFile) {
  const Layout l{1, 2, 1, 1};
  const config::DsConfig c = config_of(l, 1);
  const runtime::ModelFactory model = cut_gpt(true);
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) { record(scratch, l, model, world, c); });
  const auto flip = [](const fs::path& file, int64_t at) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const char byte = char(f.get() ^ 1);
    f.seekp(at);
    f.put(byte);
  };
  const auto said = [&](int rank) -> std::string {
    try {
      replay(scratch, l, model, c, rank);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::checkpoint);
      return e.what();
    }
    return "nothing";
  };
  const fs::path calls = folder_of(scratch, 0) / StepRecord::kCalls;
  flip(calls, int64_t(fs::file_size(calls)) - 1);
  EXPECT_NE(said(0).find("calls.bin: "), std::string::npos) << said(0);
  EXPECT_NE(said(0).find("are damaged"), std::string::npos) << said(0);
  fs::resize_file(calls, 10);
  EXPECT_NE(said(0).find("calls.bin"), std::string::npos) << said(0);
  flip(folder_of(scratch, 1) / StepRecord::kRecord, 100);
  EXPECT_NE(said(1).find("record.json: damaged"), std::string::npos) << said(1);
  fs::remove(folder_of(scratch, 1) / StepRecord::kRecord);
  EXPECT_NE(said(1).find("record.json"), std::string::npos) << said(1);
}

// Stage 2 sums gradients after each micro-batch.
TEST(Replay, AnotherConfigurationIsAnErrorThatNamesBothCalls) {
  const Layout l{1, 2, 1, 1};
  const config::DsConfig c = config_of(l, 2);
  const Scratch scratch;
  comm::run_ranks(2, [&](comm::Communicator& world) { record(scratch, l, cut_gpt(true), world, c); });
  config::DsConfig other = c;
  other.zero.stage = 2;
  try {
    replay(scratch, l, cut_gpt(true), other, 0);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the rank makes call "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("but it recorded call "), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace cleave::testing
