#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/scratch.h"

namespace cleave::data {
namespace {

std::vector<int64_t> epoch_of(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t s = 0; s < sampler.steps_per_epoch(); ++s)
    for (int64_t p = 0; p < sampler.global_batch; ++p)
      all.push_back(sampler.sample(epoch * sampler.steps_per_epoch() + s, p));
  return all;
}

std::vector<int64_t> counting(int64_t n) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int64_t> sorted(std::vector<int64_t> v) {
  std::sort(v.begin(), v.end());
  return v;
}

TEST(Sampler, EveryEpochIsAPermutationForAnyNumberOfSamples) {
  for (int64_t samples : {1, 2, 3, 4, 5, 7, 8, 16, 17, 63, 64, 65, 100, 1000, 4097})
    for (int64_t epoch = 0; epoch < 3; ++epoch)
      EXPECT_EQ(sorted(epoch_of({.samples = samples, .seed = 9}, epoch)), counting(samples)) << samples;
}

TEST(Sampler, EveryEpochAndSeedHasAnotherPermutation) {
  std::set<std::vector<int64_t>> seen;
  for (uint64_t seed = 0; seed < 4; ++seed)
    for (int64_t epoch = 0; epoch < 4; ++epoch) seen.insert(epoch_of({.samples = 50, .seed = seed}, epoch));
  EXPECT_EQ(seen.size(), 16u);
  EXPECT_EQ(seen.count(counting(50)), 0u);
}

// Each of 5 samples should be at each of 5 positions in a fifth of the epochs: mean 1000, standard deviation
// 28.
TEST(Sampler, PositionsAreUniformEvenForFewSamples) {
  std::map<std::pair<int64_t, int64_t>, int> counts;
  for (int64_t epoch = 0; epoch < 5000; ++epoch)
    for (int64_t place = 0; place < 5; ++place) ++counts[{place, permuted(place, 5, 1, epoch)}];
  ASSERT_EQ(counts.size(), 25u);
  for (const auto& [where, count] : counts)
    EXPECT_NEAR(count, 1000, 5 * 28) << where.first << ", " << where.second;
}

// Adjacent samples of a shuffled epoch are independent: the correlation of n pairs has a standard deviation
// of 1/sqrt(n).
TEST(Sampler, AdjacentSamplesAreUncorrelated) {
  const int64_t n = 10000;
  double sum = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    const double a = double(permuted(i, n, 3, 0)) / n - 0.5, b = double(permuted(i + 1, n, 3, 0)) / n - 0.5;
    sum += a * b;
  }
  EXPECT_NEAR(sum / n * 12, 0, 0.05);
}

TEST(Sampler, WithoutShuffleSamplesComeInOrder) {
  const Sampler sampler{.samples = 12, .shuffle = false, .global_batch = 4};
  EXPECT_EQ(epoch_of(sampler, 0), counting(12));
  EXPECT_EQ(epoch_of(sampler, 1), counting(12));
}

TEST(Sampler, TheLastBatchIsFilledFromTheBeginning) {
  const Sampler sampler{.samples = 10, .shuffle = false, .global_batch = 4};
  EXPECT_EQ(sampler.steps_per_epoch(), 3);
  EXPECT_EQ(epoch_of(sampler, 0), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}));
  EXPECT_EQ(sampler.epoch(2), 0);
  EXPECT_EQ(sampler.epoch(3), 1);
  const Sampler shuffled{.samples = 10, .seed = 5, .global_batch = 4};
  auto all = epoch_of(shuffled, 1);
  EXPECT_EQ(all[10], all[0]);
  EXPECT_EQ(all[11], all[1]);
  all.resize(10);
  EXPECT_EQ(sorted(all), counting(10));
}

TEST(Sampler, FewerSamplesThanABatchWrapAroundMoreThanOnce) {
  const Sampler sampler{.samples = 3, .shuffle = false, .global_batch = 8};
  sampler.check();
  EXPECT_EQ(epoch_of(sampler, 4), (std::vector<int64_t>{0, 1, 2, 0, 1, 2, 0, 1}));
}

TEST(Sampler, TheLastIncompleteBatchCanBeDropped) {
  const Sampler sampler{.samples = 10, .seed = 5, .drop_last = true, .global_batch = 4};
  EXPECT_EQ(sampler.steps_per_epoch(), 2);
  EXPECT_EQ(sampler.epoch(2), 1);
  const auto all = epoch_of(sampler, 0);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 8u);
  std::set<int64_t> seen;  // dropped samples differ between epochs
  for (int64_t epoch = 0; epoch < 20; ++epoch)
    for (int64_t s : epoch_of(sampler, epoch)) seen.insert(s);
  EXPECT_EQ(seen.size(), 10u);
}

TEST(Sampler, RanksAndMicroBatchesPartitionTheGlobalBatch) {
  for (int64_t ranks : {1, 2, 3, 4, 6, 12})
    for (int64_t micro_batch : {1, 2}) {
      if (12 % (ranks * micro_batch)) continue;
      std::vector<int64_t> all;
      for (int64_t micro = 0; micro < 12 / ranks / micro_batch; ++micro)
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Range r = micro_batch_positions(micro, rank, ranks, micro_batch);
          for (int64_t p = r.begin; p < r.end; ++p) all.push_back(p);
        }
      EXPECT_EQ(all, counting(12)) << ranks << " ranks";
    }
}

// Batches of 4, then 8, then 3 samples: every position of an epoch occurs once in some batch.
TEST(Sampler, ContinuesWithAnotherBatchAtTheNextSample) {
  Sampler sampler{.samples = 50, .seed = 5, .global_batch = 4};
  std::vector<int64_t> seen;
  int64_t step = 0;
  const auto take = [&](int64_t steps) {
    for (const int64_t end = step + steps; step < end; ++step)
      for (int64_t p = 0; p < sampler.global_batch; ++p) seen.push_back(sampler.sample(step, p));
  };
  const auto change = [&](int64_t batch) {
    sampler.first = sampler.position(step), sampler.first_step = step, sampler.global_batch = batch;
  };
  take(3), change(8), take(4), change(3), take(2);
  EXPECT_EQ(int64_t(seen.size()), 50);
  EXPECT_EQ(sampler.position(step), (Position{1, 0}));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], permuted(int64_t(i), 50, 5, 0)) << i;
}

// An epoch with a change of the batch size ends like any other: filled up, or with its rest dropped.
TEST(Sampler, SkipsDataOfStepsAndTrainsAllOthersInTheirOrder) {
  const Sampler all{.samples = 50, .seed = 5, .global_batch = 4};
  Sampler sampler = all;
  sampler.skips = {3, 3, 20};
  const auto first = [](const Sampler& s, int64_t step) { return s.sample(step, 0); };
  for (int64_t step = 0; step < 40; ++step)
    EXPECT_EQ(first(sampler, step), first(all, step + (step >= 3 ? 2 : 0) + (step >= 20 ? 1 : 0))) << step;
  // A training that continues after a skip knows the position, and the later skips only.
  Sampler continued{.samples = 50, .seed = 5, .global_batch = 4};
  continued.first_step = 10, continued.first = sampler.position(10), continued.skips = {20};
  for (int64_t step = 10; step < 40; ++step) EXPECT_EQ(first(continued, step), first(sampler, step)) << step;
}

TEST(Sampler, AnEpochWithTwoBatchSizesEndsLikeOthers) {
  Sampler sampler{.samples = 10, .shuffle = false, .global_batch = 6, .first_step = 1, .first = {0, 4}};
  EXPECT_EQ(sampler.sample(1, 0), 4);
  EXPECT_EQ(sampler.position(2), (Position{1, 0}));
  sampler.global_batch = 4;
  EXPECT_EQ(sampler.sample(2, 3), 1);  // filled from its start
  EXPECT_EQ(sampler.position(3), (Position{1, 0}));
  EXPECT_EQ(sampler.position(6), (Position{2, 0}));
  sampler.drop_last = true;
  EXPECT_EQ(sampler.position(2), (Position{1, 0}));
  sampler.first.sample = 90;  // other, shorter data
  EXPECT_EQ(sampler.position(1), (Position{1, 0}));
}

// A resume with the same batch size equals an uninterrupted training.
TEST(Sampler, AResumeWithTheSameBatchChangesNothing) {
  for (const bool drop_last : {false, true}) {
    const Sampler whole{.samples = 23, .seed = 9, .drop_last = drop_last, .global_batch = 5};
    for (int64_t begin = 0; begin < 12; ++begin) {
      Sampler resumed = whole;
      resumed.first_step = begin, resumed.first = whole.position(begin);
      for (int64_t step = begin; step < 20; ++step) {
        EXPECT_EQ(resumed.position(step), whole.position(step));
        EXPECT_EQ(resumed.sample(step, 4), whole.sample(step, 4));
      }
    }
  }
}

TEST(Sampler, RejectsBatchesThatCannotBeFilled) {
  expect_error(Exit::data, {"no samples"}, [] { Sampler{.samples = 0}.check(); });
  expect_error(Exit::data, {"got 3", "at least 4", "train_batch_size"},
               [] { Sampler{.samples = 3, .drop_last = true, .global_batch = 4}.check(); });
  expect_error(Exit::internal, {"position 4"}, [] { Sampler{.samples = 9, .global_batch = 4}.sample(0, 4); });
}

TEST(Sampler, HandlesMoreSamplesThan32Bits) {
  const int64_t samples = (int64_t{1} << 40) + 12345;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t s = permuted(samples - 1 - i, samples, 2, 7);
    EXPECT_TRUE(0 <= s && s < samples);
    seen.insert(s);
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_GT(*seen.rbegin(), samples / 2);
}

}  // namespace
}  // namespace cleave::data
