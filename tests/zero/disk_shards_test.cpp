// Shards on disk: read ahead, never older than their last write. To prove that a read was issued, the file is
// emptied before the shard is taken.
#include "zero/disk_shards.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "tests/scratch.h"

namespace cleave::zero {
namespace {

constexpr int64_t kNumel = 3000;

class DiskShardsTest : public ::testing::Test {
 protected:
  void make(int count, int buffers, const std::vector<std::vector<int>>& passes) {
    for (int i = 0; i < count; ++i) shards_.add(kNumel);
    for (const auto& pass : passes) shards_.add_pass(pass);
    shards_.commit(memory_, {.folder = scratch_.folder(), .buffers = buffers, .options = {}}, DType::fp32);
    values_.assign(size_t(count), 0);
  }
  void write(float added) {
    for (int s = 0; s < int(values_.size()); ++s) {
      const float value = values_[size_t(s)] = float(s + 1) + added;
      const Tensor place = shards_.begin_write(s, user_);
      user_.enqueue([=] { std::fill_n(place.as<float>(), kNumel, value); });
      shards_.write_behind(s, user_.record());
    }
    shards_.end_writes();
  }
  void take(int shard) {
    const Tensor t = shards_.take(shard, user_);
    user_.enqueue([=, this, want = values_[size_t(shard)]] {
      for (const float x : t.span<float>()) ASSERT_EQ(x, want) << "shard " << shard;
      ++right_;
    });
    shards_.release(user_.record());
  }
  void pass(int index, const std::vector<int>& order) {
    shards_.begin_pass(index);
    for (const int s : order) take(s);
  }
  // Completes enqueued work; later reads fail.
  void lose_the_file() {
    shards_.synchronize();
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone)
              .string()
              .starts_with(scratch_.folder().string() + "/"))
        std::filesystem::resize_file(entry.path(), 0);
    }
  }

  Scratch scratch_;
  Memory memory_;
  DiskShards shards_;
  std::vector<float> values_;
  std::atomic<int> right_ = 0;  // taken shards with the value of the last write
  Stream user_{Stream::Mode::worker};
};

TEST_F(DiskShardsTest, HaveTheFirstTakesOfAStepReadBeforeItBegins) {
  make(4, 2, {{0, 1, 2, 3, 3, 2, 1, 0}});
  write(0);
  shards_.begin_step();
  pass(0, {0, 1, 2, 3, 3, 2, 1, 0});
  shards_.end_step();
  write(0.5);
  lose_the_file();
  shards_.begin_step();
  shards_.begin_pass(0);
  take(0), take(1);
  user_.synchronize();
  EXPECT_THROW(shards_.synchronize(), Error);  // the third was not read
}

TEST_F(DiskShardsTest, AreReadIntoThePassThatFollowedInTheStepBefore) {
  make(3, 2, {{0, 1, 2}, {2, 1, 0}});
  write(0);
  for (int step = 0; step < 2; ++step) {
    shards_.begin_step();
    pass(0, {0, 1, 2});
    if (step == 1) lose_the_file();
    shards_.begin_pass(1);
    take(2), take(1);
    if (step == 0) take(0);
    shards_.end_step();
    if (step == 0) write(1);
  }
  user_.synchronize();
  EXPECT_THROW(shards_.synchronize(), Error);
}

TEST_F(DiskShardsTest, OfAnotherPassThanExpectedAreThoseItTakes) {
  make(4, 3, {{0, 1, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}, {}});
  write(0);
  const std::vector<std::vector<int>> orders{{0, 1, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}, {}};
  int taken = 0;
  const auto take_all = [&](int index) {
    pass(index, orders[size_t(index)]);
    taken += int(orders[size_t(index)].size());
  };
  for (int round = 0; round < 30; ++round) {
    shards_.begin_step();
    for (int p = 0; p <= round % 3; ++p) take_all((round * 7 + p * 5) % 4);
    shards_.end_step();
    if (round % 5 != 2) write(float(round));          // a step may be skipped
    if (round % 4 == 1) take_all(round % 3);          // an evaluation
    if (round % 7 == 3) write(float(round) + 0.25f);  // a checkpoint is loaded
  }
  user_.synchronize();
  shards_.synchronize();
  EXPECT_GT(taken, 150);
  EXPECT_EQ(right_, taken);
}

TEST_F(DiskShardsTest, AreNotTakenFromReadsBehindOneThatFailed) {
  make(3, 3, {{0, 1, 2}});
  write(0);
  shards_.begin_step();
  pass(0, {0, 1, 2});
  user_.synchronize();
  shards_.end_step();
  lose_the_file();
  shards_.end_writes();
  EXPECT_THROW(shards_.synchronize(), Error);
  shards_.begin_pass(0);  // reads again, and fails again
  EXPECT_THROW(shards_.synchronize(), Error);
}

TEST_F(DiskShardsTest, AreRefusedOutOfOrder) {
  make(2, 2, {{0, 1}});
  write(0);
  shards_.begin_pass(0);
  EXPECT_THROW(shards_.take(1, user_), Error);
}

// Also while reads for the next step are running, which continue undisturbed.
TEST_F(DiskShardsTest, MayBeLookedAtBetweenSteps) {
  make(4, 2, {{0, 1, 2, 3, 3, 2, 1, 0}});
  write(0);
  for (int step = 0; step < 2; ++step) {
    shards_.begin_step();
    pass(0, {0, 1, 2, 3, 3, 2, 1, 0});
    shards_.end_step();
    write(0.5f * float(step + 1));
    for (int s : {3, 0, 0, 2}) {
      const Tensor value = shards_.peek(s);
      ASSERT_EQ(value.numel(), kNumel);
      for (const float x : value.span<float>()) ASSERT_EQ(x, values_[size_t(s)]) << "shard " << s;
    }
  }
  user_.synchronize();
  EXPECT_EQ(right_, 16);
}

}  // namespace
}  // namespace cleave::zero
