// Values that DeepSpeed's reader converts from another type than the key's.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

ReadResult read_coerced(const std::string& members, int64_t ranks = 1) {
  ReadOptions o;
  o.world_size = ranks;
  return read_ds_config("{\"train_batch_size\": 8,\n" + members + "}", "f", o);
}

TEST(Coercion, TextsAndBooleansAreNumbersWhereDeepSpeedReadsThemSo) {
  const ReadResult r =
      read_coerced(R"("zero_optimization": {"stage": "2", "reduce_bucket_size": "500", "overlap_comm": "Yes",
    "offload_optimizer": {"device": "cpu", "ratio": "5e-1", "pin_memory": 0}},
    "fp16": {"enabled": "true", "hysteresis": true}, "tensorboard": {"enabled": "off"})");
  EXPECT_TRUE(r.ok()) << format(r.problems);
  EXPECT_EQ(r.problems.size(), 8u);
  EXPECT_NE(format(r.problems)
                .find("warning: f:2:32: zero_optimization.stage: \"2\" (a string) is read as 2, as in "
                      "DeepSpeed; write 2\n"),
            std::string::npos)
      << format(r.problems);
  EXPECT_EQ(r.config.zero.stage, 2);
  EXPECT_EQ(r.config.zero.reduce_bucket_size, 500);
  EXPECT_TRUE(r.config.zero.overlap_comm);
  EXPECT_EQ(r.config.zero.offload_optimizer.ratio, 0.5);
  EXPECT_FALSE(r.config.zero.offload_optimizer.pin_memory);
  EXPECT_EQ(r.config.precision, Precision::fp16);
  EXPECT_EQ(r.config.fp16.hysteresis, 1);
  EXPECT_FALSE(
      read_ds_config(R"({"train_batch_size": 8, "fp16": {"enabled": "true"}})", "f", {.strict = true}).ok());
}

TEST(Coercion, ValuesThatDeepSpeedRejectsAreErrors) {
  for (const char* members :
       {R"("zero_optimization": {"reduce_bucket_size": "5e8"})", R"("zero_optimization": {"stage": "4"})",
        R"("zero_optimization": {"stage": "2x"})", R"("zero_optimization": {"stage": ""})",
        R"("fp16": {"loss_scale": true})", R"("fp16": {"loss_scale_window": true})",
        R"("fp16": {"enabled": 2})", R"("fp16": {"enabled": "si"})", R"("fp16": {"enabled": null})",
        R"("zero_optimization": {"offload_optimizer": {"device": 1}})",
        R"("zero_optimization": {"offload_optimizer": {"device": "CPU"}})",
        R"("zero_optimization": {"offload_optimizer": {"ratio": "1e999"}})", R"("steps_per_print": "5")",
        R"("prescale_gradients": 2)", R"("prescale_gradients": "true")",
        R"("optimizer": {"type": "Adam", "params": {"lr": "1e-3"}})"})
    EXPECT_FALSE(read_coerced(members).ok()) << members;
}

TEST(Coercion, OneAndZeroAreSwitchesEverywhere) {
  const ReadResult r = read_coerced(
      R"("zero_allow_untested_optimizer": 1, "wall_clock_breakdown": 1, "prescale_gradients": 0)");
  EXPECT_TRUE(r.ok()) << format(r.problems);
  EXPECT_TRUE(r.config.wall_clock_breakdown);
  EXPECT_FALSE(r.config.prescale_gradients);
  EXPECT_NE(format(r.problems)
                .find("warning: f:2:34: zero_allow_untested_optimizer: 1 is read as true, as in DeepSpeed; "
                      "write true\n"),
            std::string::npos)
      << format(r.problems);
}

TEST(Coercion, AStageInATextDecidesAsANumberDoesWhatAutoIs) {
  ReadOptions o;
  o.auto_values.hidden_size = 100;
  const ReadResult r = read_ds_config(
      R"({"train_batch_size": 8, "zero_optimization": {"stage": "3", "stage3_param_persistence_threshold": "auto"}})",
      "f", o);
  EXPECT_EQ(r.config.zero.stage3_param_persistence_threshold, 1000);
}

TEST(Integers, ThatExceedTheFieldAreClampedToIt) {
  for (const char* huge : {"9223372036854775808", "1e19", "123456789012345678901234567890"}) {
    const ReadResult r = read_coerced(
        fmt::format(R"("zero_optimization": {{"stage": 3, "stage3_max_live_parameters": {}}})", huge));
    EXPECT_TRUE(r.problems.empty()) << format(r.problems);
    EXPECT_EQ(r.config.zero.stage3_max_live_parameters, INT64_MAX) << huge;
  }
  EXPECT_FALSE(read_coerced(R"("zero_optimization": {"stage": 18446744073709551618})").ok());
  EXPECT_FALSE(
      read_coerced(R"("zero_optimization": {"stage": 3, "stage3_max_live_parameters": -1e19})").ok());
  EXPECT_FALSE(
      read_coerced(R"("zero_optimization": {"stage": 3, "stage3_max_live_parameters": Infinity})").ok());
  EXPECT_FALSE(read_coerced(R"("train_micro_batch_size_per_gpu": 1e19)").ok());
}

TEST(Accepted, ASubGroupSizeOfZeroIsTheDefault) {
  const ReadResult r = read_coerced(R"("zero_optimization": {"stage": 3, "sub_group_size": 0,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}})");
  EXPECT_TRUE(r.problems.empty()) << format(r.problems);
  EXPECT_EQ(r.config.zero.sub_group_size, ZeroConfig{}.sub_group_size);
}

TEST(Accepted, ASmallestLossScaleOfZeroGoesWithAFixedScaleOnly) {
  EXPECT_TRUE(read_coerced(R"("fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": 0})").ok());
  EXPECT_EQ(format(read_coerced(R"("fp16": {"enabled": true, "min_loss_scale": 0})").problems),
            "error: f:2:27: fp16.min_loss_scale: expected at least 1 for a dynamic loss scale "
            "(fp16.loss_scale 0), got 0\n");
}

TEST(Accepted, APartitionOfMoreRanksThanThereAreIsAllOfThem) {
  const ReadResult r = read_coerced(R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8})", 4);
  EXPECT_EQ(format(r.problems),
            "warning: f:2:35: zero_optimization.zero_hpz_partition_size: 8 exceeds the data-parallel size 4, "
            "which is used instead\n");
  EXPECT_EQ(r.config.zero.zero_hpz_partition_size, 4);
  EXPECT_EQ(read_coerced(R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8})")
                .config.zero.near_ranks(),
            0);
}

}  // namespace
}  // namespace cleave::config
