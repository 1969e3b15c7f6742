// Copies of a rank's state in memory: one complete step in common at any time, and the same bits after a
// restore.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>

#include "runtime/step/state_copies.h"
#include "tests/runtime/homes.h"

namespace cleave::testing {
namespace {

using runtime::StateCopies;

// The state of a rank after a step is this byte everywhere.
constexpr int64_t kBytes = 1 << 16;
std::byte fill_of(int64_t step) { return std::byte(uint8_t(step * 7 + 3)); }

bool holds(const StateCopies& copies, int64_t step) {
  const std::byte* state = copies.state_of(step);
  return copies.text_of(step) == std::to_string(step) &&
         std::all_of(state, state + kBytes, [&](std::byte b) { return b == fill_of(step); });
}

// A rank as the engine drives it: copies the state of each step, and waits for the others in the step.
struct Rank {
  StateCopies copies;
  int64_t step = 0;  // copied now or next
  enum class At { before, within, complete } at = At::before;

  void advance() {
    if (at == At::before) {
      std::fill_n(copies.begin(step).state, kBytes / 2, fill_of(step));
      at = At::within;
    } else if (at == At::within) {
      std::fill_n(copies.begin(step).state, kBytes, fill_of(step));
      copies.end(step, std::to_string(step));
      at = At::complete;
    } else {
      at = At::before, ++step;
    }
  }
};

TEST(StateCopies, HaveACommonCompleteStepWheneverRanksDie) {
  std::minstd_rand random(3);
  for (const int count : {1, 2, 3, 4}) {
    std::vector<Rank> ranks{size_t(count)};
    for (Rank& r : ranks) r.copies.open(kBytes);
    for (int i = 0; i < 400; ++i) {
      Rank& r = ranks[random() % ranks.size()];
      // The sum of the losses of a step needs the copies of all ranks.
      const bool all_complete = std::ranges::all_of(ranks, [&](const Rank& other) {
        return other.step > r.step || (other.step == r.step && other.at == Rank::At::complete);
      });
      if (r.at == Rank::At::complete && !all_complete) continue;
      r.advance();
      std::vector<int64_t> steps;
      int64_t newest = 0;
      for (const Rank& each : ranks) {
        std::ranges::copy(each.copies.steps(), std::back_inserter(steps));
        newest = std::max(newest, each.step);
      }
      const int64_t common = runtime::newest_common_step(steps);
      // Complete on all ranks before any began the next one.
      ASSERT_GE(common, newest - 1) << count << " ranks";
      for (const Rank& each : ranks)
        if (common >= 0) {
          ASSERT_TRUE(holds(each.copies, common)) << count << " ranks, step " << common;
        }
    }
  }
}

TEST(StateCopies, AreCompleteAfterAKillAtAnyTime) {
  std::minstd_rand random(5);
  StateCopies copies;
  copies.open(kBytes);
  int64_t begin = 0;
  for (int kill_at = 0; kill_at < 30; ++kill_at) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0)
      for (int64_t step = begin;; ++step) {
        std::fill_n(copies.begin(step).state, kBytes, fill_of(step));
        copies.end(step, std::to_string(step));
      }
    std::this_thread::sleep_for(std::chrono::microseconds(300 + random() % 3000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::array<int64_t, 2> steps = copies.steps();
    if (copies.newest() < 0) continue;
    for (const int64_t step : steps)
      if (step >= 0) {
        ASSERT_TRUE(holds(copies, step)) << "killed " << kill_at << " times, step " << step;
      }
    begin = copies.newest() + 1;
  }
  EXPECT_GT(begin, 1);
}

TEST(StateCopies, OfAnotherSizeAreAnError) {
  StateCopies copies;
  copies.open(kBytes);
  copies.open(kBytes);
  expect_error(Exit::internal, {"another size", "65536", "4096"}, [&] { copies.open(4096); });
}

TEST(StateCopies, WithoutACommonStepGiveNone) {
  EXPECT_EQ(runtime::newest_common_step(std::vector<int64_t>{3, 4}), 4);
  EXPECT_EQ(runtime::newest_common_step(std::vector<int64_t>{3, 4, 3, -1}), 3);
  EXPECT_EQ(runtime::newest_common_step(std::vector<int64_t>{3, 4, 5, 4, 4, 5}), 4);
  EXPECT_EQ(runtime::newest_common_step(std::vector<int64_t>{3, 4, 5, 6}), -1);
  EXPECT_EQ(runtime::newest_common_step(std::vector<int64_t>{-1, -1}), -1);
}

config::DsConfig copied(config::DsConfig c) {
  c.copies_in_memory = true;
  return c;
}

// Trains, loses the engine within a step, and continues another one from the copies.
void expect_same_bits(const config::DsConfig& plain, int ranks, DType type, const std::string& layout) {
  std::vector<StateCopies> copies{size_t(ranks)};
  const config::DsConfig c = copied(plain);
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    Tokens tokens(1);
    StateCopies& mine = copies[size_t(world.rank())];
    runtime::Engine unbroken(plain, small_gpt(type, 0.1f), world, {.compute = Stream::Mode::worker});
    for (int step = 0; step < 7; ++step)
      unbroken.train_batch(source(tokens, plain, step, world.rank(), ranks));
    const Weights want = weights_of(unbroken);
    runtime::EngineOptions options{.compute = Stream::Mode::worker, .copies = &mine};
    {
      runtime::Engine lost(c, small_gpt(type, 0.1f), world, options);
      EXPECT_EQ(lost.memory_live(), lost.memory_planned()) << layout;
      for (int step = 0; step < 5; ++step) {
        lost.describe_copies(fmt::format("{{\"rank\":{},\"step\":{}}}", world.rank(), step));
        lost.train_batch(source(tokens, c, step, world.rank(), ranks));
      }
    }
    EXPECT_EQ(mine.newest(), 4) << "the last step is repeated";
    options.seed = 99, options.weights_follow = true;
    runtime::Engine again(c, small_gpt(type, 0.1f), world, options);
    EXPECT_EQ(again.load_copies(), fmt::format("{{\"rank\":{},\"step\":4}}", world.rank()));
    EXPECT_EQ(again.step(), 4);
    for (int step = 4; step < 7; ++step) again.train_batch(source(tokens, c, step, world.rank(), ranks));
    EXPECT_EQ(weights_of(again), want) << layout;
  });
}

TEST(StateCopies, ContinueATrainingWithTheSameBits) {
  for (const config::Precision precision :
       {config::Precision::fp32, config::Precision::fp16, config::Precision::bf16})
    for (const int stage : {0, 1, 2, 3}) {
      config::DsConfig c = in_type(config_for(3), precision);
      c.zero.stage = stage, c.gradient_clipping = stage % 2;
      expect_same_bits(c, 3, type_of(precision),
                       fmt::format("stage {} in {}", stage, name_of(type_of(precision))));
    }
}

TEST(StateCopies, ContinueFromEveryHomeOfTheState) {
  for (const Homes& homes : all_homes()) {
    config::DsConfig c = in_type(config_for(2), config::Precision::bf16);
    c.zero.stage = 3;
    expect_same_bits(with(c, homes), 2, DType::bf16, text_of(homes, c));
  }
}

TEST(StateCopies, KeepFrozenParametersAndSkipThemLater) {
  config::DsConfig c = config_for(2);
  c.zero.stage = 1, c.freeze = {"*.mlp.*"};
  expect_same_bits(c, 2, DType::fp32, "frozen");
}

}  // namespace
}  // namespace cleave::testing
