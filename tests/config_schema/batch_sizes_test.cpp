#include "config_schema/batch_sizes.h"

#include <gtest/gtest.h>

namespace cleave::config {
namespace {

using Size = std::optional<int64_t>;
const Size none;

TEST(BatchSizes, AreLimitedInMicroBatchesPerStep) {
  EXPECT_EQ(solve_batch({2'000'000, 2, none}, 1).error, "");
  for (const BatchSizes& given : {BatchSizes{none, 2, 1'000'001}, BatchSizes{2'000'002, 2, none}})
    EXPECT_EQ(
        solve_batch(given, 1).error,
        "1000001 micro-batches per step are too many (at most 1000000); raise the micro-batch size, or lower "
        "train_batch_size");
}

TEST(BatchSizes, AllEightCasesFollowFromWhatIsGiven) {
  struct Case {
    BatchSizes given, wanted;
    int64_t ranks;
  };
  const Case cases[] = {
      {{64, 8, 4}, {64, 8, 4}, 2},         // all three: checked
      {{64, 8, none}, {64, 8, 4}, 2},      // accumulation
      {{64, none, 4}, {64, 8, 4}, 2},      // micro-batch
      {{none, 8, 4}, {64, 8, 4}, 2},       // train
      {{64, none, none}, {64, 32, 1}, 2},  // train alone
      {{none, 8, none}, {16, 8, 1}, 2},    // micro-batch alone
  };
  for (const Case& c : cases) {
    const SolvedBatch s = solve_batch(c.given, c.ranks);
    EXPECT_EQ(s.error, "");
    EXPECT_EQ(s.sizes, c.wanted);
  }
  for (const BatchSizes& given : {BatchSizes{none, none, 4}, BatchSizes{}})
    EXPECT_EQ(solve_batch(given, 2).error,
              "the batch size is not defined; set train_batch_size or train_micro_batch_size_per_gpu to "
              "a number, or pass --per_device_train_batch_size (cleave train, Trainer)");
}

TEST(BatchSizes, EverySolutionMultipliesOutAndKeepsWhatWasGiven) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks)
    for (int64_t train = 0; train <= 40; ++train)
      for (int64_t micro = 0; micro <= 9; ++micro)
        for (int64_t accumulation = 0; accumulation <= 5; ++accumulation) {
          const auto maybe = [](int64_t x) { return x ? Size(x) : none; };
          const BatchSizes given{maybe(train), maybe(micro), maybe(accumulation)};
          const SolvedBatch s = solve_batch(given, ranks);
          if (!s.error.empty()) continue;
          EXPECT_EQ(*s.sizes.train, *s.sizes.micro * *s.sizes.accumulation * ranks);
          EXPECT_EQ(s.sizes.train.value(), given.train.value_or(s.sizes.train.value()));
          EXPECT_EQ(s.sizes.micro.value(), given.micro.value_or(s.sizes.micro.value()));
          EXPECT_EQ(s.sizes.accumulation.value(), given.accumulation.value_or(s.sizes.accumulation.value()));
        }
}

TEST(BatchSizes, TheMessageHasTheValuesTheRanksAndTheNearestSets) {
  EXPECT_EQ(
      solve_batch({10, 4, none}, 2, "2 ranks from WORLD_SIZE").error,
      "train_batch_size 10 is not divisible by 8 = train_micro_batch_size_per_gpu 4 x 2 data-parallel ranks "
      "(2 ranks from WORLD_SIZE); nearest valid values, as train = micro * accumulation * ranks: 8 = 4 * 1 * "
      "2, "
      "16 = 4 * 2 * 2, 10 = 5 * 1 * 2");
  EXPECT_EQ(
      solve_batch({7, none, none}, 8).error,
      "train_batch_size 7 is not divisible by the 8 data-parallel ranks; nearest valid values, as train = "
      "micro * accumulation * ranks: 8 = 1 * 1 * 8; data-parallel ranks that fit: 1, 7");
  const auto ending = [](const BatchSizes& given, int64_t ranks) {
    const std::string error = solve_batch(given, ranks).error;
    return error.substr(error.find("ranks: ") + 7);
  };
  EXPECT_EQ(ending({8, none, none}, 3),
            "6 = 1 * 2 * 3, 9 = 1 * 3 * 3; data-parallel ranks that fit: 1, 2, 4, 8");
  EXPECT_EQ(ending({8, 4, none}, 3), "12 = 4 * 1 * 3, 6 = 2 * 1 * 3; data-parallel ranks that fit: 1, 2");
  EXPECT_EQ(ending({8, 2, 1}, 3).substr(0, 13), "6 = 2 * 1 * 3");
  EXPECT_TRUE(ending({8, 2, 1}, 3).ends_with("; data-parallel ranks that fit: 4"));
  EXPECT_TRUE(ending({840, none, none}, 11).ends_with("; data-parallel ranks that fit: 8, 10, 12, 14"));
  EXPECT_EQ(solve_batch({24, none, 5}, 4).error.substr(0, 93),
            "train_batch_size 24 is not divisible by 20 = gradient_accumulation_steps 5 x 4 data-parallel ");
  const std::string all = solve_batch({64, 8, 3}, 2).error;
  EXPECT_EQ(
      all.substr(0, all.find(';')),
      "train_batch_size is 64, but train_micro_batch_size_per_gpu 8 x gradient_accumulation_steps 3 x 2 "
      "data-parallel ranks is 48");
  EXPECT_NE(all.find("48 = 8 * 3 * 2"), std::string::npos);
}

TEST(BatchSizes, TooFewSamplesForTheRanksIsAnError) {
  EXPECT_NE(solve_batch({3, none, none}, 8).error, "");
  EXPECT_NE(solve_batch({8, none, 4}, 8).error, "");
}

TEST(BatchSizes, HugeValuesDoNotOverflow) {
  const int64_t most = INT64_MAX;
  EXPECT_NE(solve_batch({most, most, most}, most).error, "");
  EXPECT_NE(solve_batch({none, most, 2}, 2).error, "");
  EXPECT_NE(solve_batch({most, 2, none}, 3).error, "");
  EXPECT_EQ(solve_batch({none, most, none}, 1).sizes.train, most);
}

}  // namespace
}  // namespace cleave::config
