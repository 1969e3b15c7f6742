// Background saves: same bytes as a blocking save while the state changes, and failures.
#include "checkpoint/background_save.h"

#include <gtest/gtest.h>

#include "checkpoint/digest.h"
#include "core/range.h"
#include "tests/checkpoint/file_faults.h"
#include "tests/checkpoint/hand_made.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kStateNumel = 5000;

// Training state of a rank: its part of two tensors, and memory for a copy.
class State {
 public:
  explicit State(const comm::Communicator& world)
      : part_(part(kStateNumel, world.size(), world.rank())),
        values_(size_t(2 * part_.size())),
        copy_(values_) {
    step(0);
  }
  void step(int n) {
    for (size_t i = 0; i < values_.size(); ++i)
      values_[i] = float(int64_t{n} * 100000 + part_.begin + int64_t(i));
  }
  std::vector<checkpoint::Record> records() const {
    return {record("master", 0), record("exp_avg", part_.size())};
  }
  Tensor copy() {
    return Tensor(copy_.data(), DType::uint8, {checkpoint::BackgroundSave::bytes_of(records())},
                  MemoryKind::host);
  }

 private:
  checkpoint::Record record(const std::string& kind, int64_t at) const {
    return {kind,
            "w",
            {kStateNumel},
            {part_},
            [this, at](Range r, Tensor to) {
              std::copy_n(values_.data() + at + r.begin, r.size(), to.as<float>());
            },
            {}};
  }
  Range part_;
  std::vector<float> values_, copy_;
};

// Text of a shard or manifest without the parts that differ between two saves of the same state: the save's
// name, and the checksum of the header that contains it.
std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const std::string key : {"\"save\":\"", "\"header_xxh3\": \"", "\"xxh3\": \""})
    for (size_t at = text.find(key); at != text.npos; at = text.find(key, at + 1))
      text.replace(at + key.size(), 16, 16, '0');
  return text;
}

TEST(BackgroundSave, WritesTheBytesOfABlockingSaveWhileTheStateChanges) {
  for (const int ranks : {1, 2, 4}) {
    const Scratch waits, behind;
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      State state(world);
      checkpoint::save_checkpoint(waits.folder(), "a", state.records(), R"({"step": 7})", world);
    });
    slow_file_calls(behind.folder().c_str(), 20);
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      State state(world);
      checkpoint::BackgroundSave save(state.copy(), world);
      std::atomic<bool> written{false};
      save.begin(behind.folder(), "a", state.records(), R"({"step": 7})",
                 [&](const checkpoint::SavedCheckpoint& saved) { written = saved.name == "a"; });
      int steps = 0;
      while (!written) state.step(++steps);
      EXPECT_GT(steps, 10) << "the writer was not slow";
      save.finish();
    });
    slow_file_calls("", 0);
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(waits.folder() / "a")) {
      const std::string name = entry.path().filename();
      EXPECT_EQ(text_of(entry.path()), text_of(behind.folder() / "a" / name)) << name;
      names.insert(name);
    }
    EXPECT_EQ(names.size(), size_t(ranks) + 1);
    EXPECT_EQ(checkpoint::digests(checkpoint::CheckpointReader(waits.folder(), "latest"), 1),
              checkpoint::digests(checkpoint::CheckpointReader(behind.folder(), "latest"), 1));
  }
}

TEST(BackgroundSave, WaitsForThePreviousSave) {
  const Scratch scratch;
  slow_file_calls(scratch.folder().c_str(), 10);
  comm::run_ranks(2, [&](comm::Communicator& world) {
    State state(world);
    checkpoint::BackgroundSave save(state.copy(), world);
    for (int n = 1; n <= 3; ++n) {
      state.step(n);
      save.begin(scratch.folder(), fmt::format("step{}", n), state.records(), "{}", {});
    }
    save.finish();
  });
  slow_file_calls("", 0);
  for (int n = 1; n <= 3; ++n)
    EXPECT_EQ(read(checkpoint::CheckpointReader(scratch.folder(), fmt::format("step{}", n)), "master", "w",
                   {kStateNumel}, {{0, 1}}),
              std::vector<float>{float(n * 100000)});
  EXPECT_EQ(checkpoint::latest_checkpoint(scratch.folder()), "step3");
}

TEST(BackgroundSave, ReportsAnErrorOfOneRankOnAllRanks) {
  const Scratch scratch;
  std::ofstream(scratch.folder() / "file") << "x";
  comm::run_ranks(2, [&](comm::Communicator& world) {
    State state(world);
    checkpoint::BackgroundSave save(state.copy(), world);
    save.begin(scratch.folder() / "file", "a", state.records(), "{}",
               [](const checkpoint::SavedCheckpoint&) { ADD_FAILURE() << "nothing was saved"; });
    while (!save.failed()) std::this_thread::yield();
    expect_error(Exit::checkpoint, {"not saved, earlier checkpoints are unchanged", "file"},
                 [&] { save.finish(); });
    EXPECT_FALSE(save.failed());
    save.finish();  // the error is thrown once
    save.begin(scratch.folder(), "a", state.records(), "{}", {});
    save.finish();
    // An error of a rank's read is found during the copy.
    std::vector<checkpoint::Record> broken = state.records();
    if (world.rank() == 1) broken[1].read = [](Range, Tensor) { fail(Exit::checkpoint, "the disk is gone"); };
    expect_error(Exit::checkpoint, {"the disk is gone"},
                 [&] { save.begin(scratch.folder(), "b", broken, "{}", {}); });
  });
  EXPECT_EQ(checkpoint::list_checkpoints(scratch.folder()), std::vector<std::string>{"a"});
}

// A run that ends with an exception does not wait for a slow disk, and neither do its other ranks. The test
// compares with ten saves on a disk that is ten times as fast.
TEST(BackgroundSave, IsCanceledIfTheRunThrows) {
  constexpr int kSlow = 1000, kTimes = 10;  // milliseconds a call
  for (const bool both : {true, false}) {
    const Scratch scratch;
    slow_file_calls(scratch.folder().c_str(), kSlow / kTimes);
    auto begin = Clock::now();
    comm::run_ranks(2, [&](comm::Communicator& world) {
      checkpoint::save_checkpoint(scratch.folder(), "one", State(world).records(), "{}", world);
    });
    const auto whole = kTimes * (Clock::now() - begin);
    slow_file_calls(scratch.folder().c_str(), kSlow);
    begin = Clock::now();
    comm::run_ranks(2, [&](comm::Communicator& world) {
      State state(world);
      try {
        checkpoint::BackgroundSave save(state.copy(), world);
        save.begin(scratch.folder(), "two", state.records(), "{}", {});
        if (both || world.rank() == 1) throw std::runtime_error("diverged");
        save.finish();
        ADD_FAILURE() << "saved without rank 1";
      } catch (const Error& e) {
        EXPECT_EQ(e.exit(), Exit::rank_lost);
        EXPECT_NE(std::string(e.what()).find("rank 1 gives up its unfinished checkpoint because of an error"),
                  std::string::npos)
            << e.what();
      } catch (const std::runtime_error&) {
      }
    });
    slow_file_calls("", 0);
    EXPECT_LT(Clock::now() - begin, whole);
    EXPECT_EQ(checkpoint::list_checkpoints(scratch.folder()), std::vector<std::string>{"one"});
    EXPECT_EQ(checkpoint::latest_checkpoint(scratch.folder()), "one");
  }
}

}  // namespace
}  // namespace cleave::testing
