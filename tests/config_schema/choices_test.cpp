// Tables of named choices.
#include "config_schema/choices.h"

#include <gtest/gtest.h>

#include <set>

#include "config_schema/keys.h"
#include "core/choice.h"

namespace cleave::config {
namespace {

template <class E>
void expect_each_found() {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kNamesOf<E>.size(); ++i) {
    EXPECT_EQ(choice_of<E>(kNamesOf<E>[i]), E(i));
    EXPECT_EQ(name_of(E(i)), kNamesOf<E>[i]);
    EXPECT_TRUE(names.insert(kNamesOf<E>[i]).second) << kNamesOf<E>[i] << " stands twice";
  }
  EXPECT_EQ(choice_of<E>("no such name"), std::nullopt);
}

TEST(Choices, AreFoundByTheirNamesAndNoOther) {
  expect_each_found<OptimizerType>();
  expect_each_found<SchedulerType>();
  expect_each_found<WarmupType>();
  expect_each_found<OffloadDevice>();
  expect_each_found<OffloadUpdate>();
  expect_each_found<Switch>();
  expect_each_found<CheckpointingPolicy>();
  expect_each_found<Precision>();
  EXPECT_EQ(list_of<Switch>(), "auto, on or off");
  EXPECT_EQ(fmt::format("{}", OffloadDevice::nvme), "nvme");
}

// The words of a row are keys: a misspelled one would remove the argument from its optimizer.
TEST(Choices, RowsNameDescribedKeysOnly) {
  DsConfig config;
  std::set<std::string> paths;
  for (const Key& key : describe(config)) paths.insert(key.path);
  const auto expect_keys = [&](std::string_view section, std::span<const TypeRow> rows) {
    for (const TypeRow& row : rows)
      for (size_t begin = 0; begin < row.arguments.size();) {
        const size_t end = std::min(row.arguments.find(' ', begin), row.arguments.size());
        const std::string_view word = row.arguments.substr(begin, end - begin);
        EXPECT_TRUE(paths.contains(fmt::format("{}.params.{}", section, word))) << row.name << ": " << word;
        EXPECT_TRUE(row.has(word));
        begin = end + 1;
      }
  };
  expect_keys("optimizer", kOptimizers);
  expect_keys("scheduler", kSchedulers);
  EXPECT_FALSE(kSchedulers[size_t(SchedulerType::range_test)].has("lr_range_test_step"));
  EXPECT_FALSE(kOptimizers[size_t(OptimizerType::sgd)].has("betas"));
}

}  // namespace
}  // namespace cleave::config
