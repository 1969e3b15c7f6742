// Batches of values that the caller owns.
#include "device/batch.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave {
namespace {

TEST(Batch, FeaturesHaveARowPerTargetAndIgnoredTargetsAreNotCounted) {
  const std::vector<float> features{1, 2, 3, 4, 5, 6};
  const std::vector<int32_t> targets{0, kIgnoredTarget, 2};
  const Batch b = batch_of(features, targets);
  EXPECT_EQ(b.input.shape(), (Shape{3, 2}));
  EXPECT_EQ(b.input.as<float>(), features.data());
  EXPECT_EQ(b.targets.shape(), (Shape{3}));
  EXPECT_EQ(b.targets.as<int32_t>(), targets.data());
  EXPECT_EQ(b.valid_targets, 2);
  EXPECT_EQ(b.input.memory(), MemoryKind::host);  // a GPU rank copies it
  EXPECT_EQ(b.targets.memory(), MemoryKind::host);
}

TEST(Batch, TokensHaveOneTokenPerTarget) {
  const std::vector<int32_t> tokens{7, 8, 9}, targets{8, 9, 10};
  const Batch b = batch_of(tokens, targets);
  EXPECT_EQ(b.input.shape(), (Shape{3}));
  EXPECT_EQ(b.input.dtype(), DType::int32);
  EXPECT_EQ(b.valid_targets, 3);
}

TEST(Batch, SequencesHaveALabelEach) {
  const std::vector<int32_t> tokens{7, 8, 9, 1, 2, 3}, labels{0, 1};
  const Batch b = batch_of(tokens, labels);
  EXPECT_EQ(b.input.shape(), (Shape{6}));
  EXPECT_EQ(b.targets.shape(), (Shape{2}));
  EXPECT_EQ(b.valid_targets, 2);
}

TEST(Batch, RejectsValuesThatDoNotFitTheTargets) {
  const std::vector<float> features{1, 2, 3};
  const std::vector<int32_t> tokens{1, 2, 3}, two{0, 1}, none;
  for (const auto& make :
       {std::function([&] { batch_of(features, two); }), std::function([&] { batch_of(features, none); }),
        std::function([&] { batch_of(tokens, two); })}) {
    expect_error(Exit::data, {}, [&] { make(); });
  }
}

}  // namespace
}  // namespace cleave
