#include <fmt/core.h>
#include <gtest/gtest.h>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

ReadResult read_pipeline(const std::string& pipeline, int64_t world,
                         const std::string& batch = R"("train_batch_size": 24)") {
  return read_ds_config("{" + batch + ",\n\"pipeline\": " + pipeline + "}", "f", {.world_size = world});
}
std::string pipeline_problems(const std::string& pipeline, int64_t world) {
  return format(read_pipeline(pipeline, world).problems);
}

TEST(PipelineConfig, IsReadAndTheBatchIsDividedByTheRemainingRanks) {
  const ReadResult r = read_pipeline(
      R"({"stages": 3, "schedule": "interleaved", "virtual_stages": 2, "partition_method": "type:^h"})", 6,
      R"("train_batch_size": 24, "gradient_accumulation_steps": 4)");
  ASSERT_TRUE(r.problems.empty()) << format(r.problems);
  EXPECT_EQ(r.config.pipeline.stages, 3);
  EXPECT_EQ(r.config.pipeline.schedule, "interleaved");
  EXPECT_EQ(r.config.pipeline.virtual_stages, 2);
  EXPECT_EQ(r.config.pipeline.partition_method, "type:^h");
  EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 3);  // 24 / 4 / (6 / 3)
}

TEST(PipelineConfig, OneStageIsTheDefaultInAnyForm) {
  for (const char* form : {"{}", "null", R"({"stages": 1})", R"({"stages": 0})", R"({"stages": null})",
                           R"({"stages": "auto"})", R"({"partition": "best", "pipe_partitioned": true})"}) {
    const ReadResult r = read_pipeline(form, 4);
    EXPECT_EQ(format(r.problems), "") << form;
    EXPECT_EQ(r.config.pipeline.stages, 1) << form;
    EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 6) << form;
  }
}

TEST(PipelineConfig, StagesThatDoNotDivideTheWorldAreErrorsWithTheDivisors) {
  EXPECT_EQ(pipeline_problems(R"({"stages": 4})", 6),
            "error: f:2:14: pipeline.stages: 4 stages do not divide 6 ranks; use 1, 2, 3, 6\n");
}

TEST(PipelineConfig, ABatchThatDoesNotFitNamesTheStages) {
  const ReadResult r = read_pipeline(R"({"stages": 2})", 10);
  EXPECT_NE(format(r.problems).find("5 data-parallel ranks (10 ranks / 2 pipeline stages)"),
            std::string::npos)
      << format(r.problems);
}

TEST(PipelineConfig, ABatchThatFitsWithStagesNamesThem) {
  const auto problems = [](const std::string& batch, int64_t world) {
    return format(read_pipeline("{}", world, batch).problems);
  };
  const std::string batch =
      R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3)";
  EXPECT_NE(problems(batch, 8).find(
                "; a pipeline of 4 stages leaves 2: pipeline.stages, or num_stages of a PipelineModule"),
            std::string::npos)
      << problems(batch, 8);
  EXPECT_EQ(problems(batch, 3).find("a pipeline"), std::string::npos) << problems(batch, 3);
  EXPECT_EQ(problems(R"("train_batch_size": 9)", 4).find("a pipeline"), std::string::npos);
}

TEST(PipelineConfig, WrongSchedulesMethodsAndCombinationsAreErrorsWithTheChoices) {
  EXPECT_EQ(pipeline_problems(R"({"stages": 2, "schedule": "1F1B"})", 2),
            "error: f:2:27: pipeline.schedule: unknown schedule \"1F1B\"; use gpipe, 1f1b, interleaved, "
            "zb-h1, or "
            "the path of a .json file; did you mean \"1f1b\"?\n");
  EXPECT_EQ(pipeline_problems(R"({"stages": 2, "schedule": "mine/own.json"})", 2), "");
  EXPECT_EQ(
      pipeline_problems(R"({"stages": 2, "virtual_stages": 2})", 2),
      "error: f:2:27: pipeline.virtual_stages: 2 chunks per rank need the schedule \"interleaved\"; 1f1b "
      "has one\n");
  EXPECT_EQ(pipeline_problems(R"({"stages": 2, "partition_method": "best"})", 2),
            "error: f:2:27: pipeline.partition_method: unknown method \"best\"; use balanced, parameters, "
            "uniform, type:REGEX, or layers per stage such as \"3,4,4,3\"\n");
  for (const char* good : {"balanced", "parameters", "uniform", "type:h", "3,4,4"})
    EXPECT_EQ(pipeline_problems(fmt::format(R"({{"stages": 2, "partition_method": "{}"}})", good), 2), "")
        << good;
  EXPECT_EQ(pipeline_problems(R"({"stages": 2, "activation_checkpoint_interval": 1})", 2), "");
  EXPECT_NE(pipeline_problems(R"({"stages": -2})", 2), "");
  EXPECT_NE(pipeline_problems(R"({"stages": "two"})", 2), "");
  EXPECT_NE(pipeline_problems(R"({"stages": 2, "virtual_stages": 0})", 2), "");
}

TEST(PipelineConfig, KeysThatOneStageDoesNotReadAreReportedAsIdle) {
  EXPECT_EQ(pipeline_problems(R"({"schedule": "gpipe"})", 2),
            "warning: f:2:14: pipeline.schedule: has no effect: pipeline.stages is 1\n");
}

TEST(PipelineConfig, TheDataParallelSizeIsCheckedWithoutTheStages) {
  EXPECT_EQ(
      format(read_ds_config(R"({"train_batch_size": 4, "data_parallel_size": 2, "pipeline": {"stages": 2}})",
                            "f", {.world_size = 4})
                 .problems),
      "");
}

TEST(NearRanksConfig, GroupsThatDoNotDivideTheDataAxisAreErrorsWithTheDivisors) {
  auto problems_of = [](const std::string& keys) {
    return format(
        read_ds_config(
            R"({"train_batch_size": 24, "pipeline": {"stages": 2}, "zero_optimization": {"stage": 3, )" +
                keys + "}}",
            "f", {.world_size = 12})
            .problems);
  };
  EXPECT_NE(problems_of(R"("mics_shard_size": 4)")
                .find("4 ranks do not divide the data-parallel size 6; use 1, 2, 3, 6"),
            std::string::npos);
  EXPECT_NE(problems_of(R"("zero_hpz_partition_size": 5)").find("use 1, 2, 3, 6"), std::string::npos);
  EXPECT_NE(problems_of(R"("mics_shard_size": 0)").find("use 1, 2, 3, 6"), std::string::npos);
  EXPECT_NE(problems_of(R"("mics_shard_size": 2, "zero_hpz_partition_size": 3)").find("remove one"),
            std::string::npos);
  EXPECT_EQ(problems_of(R"("mics_shard_size": 3)"), "");
  EXPECT_EQ(problems_of(R"("mics_shard_size": -1, "zero_hpz_partition_size": 1)"), "");
}

TEST(QuantizedGathersConfig, AreErrorsWithATensorAxisAndExactSumsAndReadByStage3Only) {
  auto problems_of = [](int stage, const std::string& beside) {
    return format(read_ds_config(fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, {}
                                   "zero_optimization": {{"stage": {}, "zero_quantized_weights": true}}}})",
                                             beside, stage),
                                 "f", {.world_size = 4})
                      .problems);
  };
  const std::string tensor = R"("tensor_parallel": {"autotp_size": 2},)",
                    exact = R"("cleave": {"exact_sums": true},)";
  EXPECT_EQ(problems_of(3, ""), "");
  EXPECT_NE(problems_of(3, tensor).find("error: f:2:"), std::string::npos);
  EXPECT_NE(problems_of(3, tensor).find("zero_quantized_weights: cannot be combined with tensor parallelism"),
            std::string::npos);
  EXPECT_NE(problems_of(3, exact).find("zero_quantized_weights: rounds weights"), std::string::npos);
  for (const std::string& beside : {tensor, exact})
    EXPECT_EQ(problems_of(2, beside).find("error"), std::string::npos) << problems_of(2, beside);
}

}  // namespace
}  // namespace cleave::config
