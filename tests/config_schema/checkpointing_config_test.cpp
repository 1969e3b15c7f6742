// The section activation_checkpointing: keys that enable recomputation, and contradictions.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

ReadResult read_checkpointing(const std::string& section, const std::string& pipeline = "{}") {
  return read_ds_config(
      fmt::format(R"({{"train_batch_size": 4, "pipeline": {}, "activation_checkpointing": {}}})", pipeline,
                  section),
      "f", {.world_size = 2});
}
CheckpointingConfig accepted(const std::string& section, const std::string& pipeline = "{}") {
  const ReadResult r = read_checkpointing(section, pipeline);
  EXPECT_EQ(format(r.problems), "") << section;
  return r.config.checkpointing;
}
std::string checkpointing_problems(const std::string& section, const std::string& pipeline = "{}") {
  return format(read_checkpointing(section, pipeline).problems);
}

TEST(CheckpointingConfig, IsOffWhenNoKeyAsksForAnything) {
  for (const char* section :
       {"{}", R"({"partition_activations": false, "number_checkpoints": null, "profile": false})",
        R"({"interval": 0})"}) {
    const CheckpointingConfig c = accepted(section);
    EXPECT_EQ(c.interval, 0) << section;
    EXPECT_EQ(c.number, 0) << section;
    EXPECT_FALSE(c.lean) << section;
  }
}

TEST(CheckpointingConfig, AnIntervalOfZeroKeepsItOffWithAWarning) {
  for (const char* key :
       {R"("partition_activations": true)", R"("cpu_checkpointing": true)", R"("number_checkpoints": 4)"}) {
    const ReadResult r = read_checkpointing(fmt::format(R"({{"interval": 0, {}}})", key));
    EXPECT_TRUE(r.ok()) << key;
    EXPECT_NE(format(r.problems).find("0 turns recomputation off, but other keys of the section turn it on"),
              std::string::npos)
        << key;
    EXPECT_EQ(r.config.checkpointing.interval, 0);
    EXPECT_EQ(r.config.checkpointing.number, 0);
    EXPECT_FALSE(r.config.checkpointing.to_host);
  }
}

TEST(CheckpointingConfig, AnyEnabledKeySwitchesEveryLayerOn) {
  for (const char* key : {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
                          "synchronize_checkpoint_boundary"})
    EXPECT_EQ(accepted(fmt::format(R"({{"{}": true}})", key)).interval, 1) << key;
}

TEST(CheckpointingConfig, IntervalsAndNumbersAreReadFromBothSections) {
  EXPECT_EQ(accepted(R"({"interval": 3})").interval, 3);
  EXPECT_EQ(accepted("{}", R"({"activation_checkpoint_interval": 4})").interval, 4);
  EXPECT_EQ(accepted(R"({"interval": 4})", R"({"activation_checkpoint_interval": 4})").interval, 4);
  const CheckpointingConfig c = accepted(R"({"number_checkpoints": 5, "partition_activations": true})");
  EXPECT_EQ(c.number, 5);
  EXPECT_EQ(c.interval, 0);
  EXPECT_TRUE(accepted(R"({"policy": "selective"})").lean);
}

TEST(CheckpointingConfig, NumbersOfLayersAreListsByPipelineRank) {
  using Numbers = std::vector<int64_t>;
  const CheckpointingConfig c = accepted(R"({"full_layers": "2,0"})", R"({"stages": 2})");
  EXPECT_TRUE(c.by_rank());
  EXPECT_EQ(c.full, (Numbers{2, 0}));
  EXPECT_EQ(c.selective, (Numbers{0, 0}));
  EXPECT_EQ(accepted(R"({"selective_layers": "3", "policy": "fit"})").selective, Numbers{3});
  EXPECT_FALSE(accepted(R"({"policy": "fit"})").by_rank()) << "a plan chooses";
  for (const char* text : {"2", "1,2,3", "1,", "1,-2", "1;2", "a,b", "1, 2"})
    EXPECT_NE(checkpointing_problems(fmt::format(R"({{"full_layers": "{}"}})", text), R"({"stages": 2})")
                  .find("expected one number of layers per pipeline rank, such as \"1,1\""),
              std::string::npos)
        << text;
  for (const char* other : {R"("interval": 1)", R"("number_checkpoints": 2)", R"("cpu_checkpointing": true)"})
    for (const char* key : {R"("policy": "fit")", R"("full_layers": "1")"})
      EXPECT_NE(checkpointing_problems(fmt::format("{{{}, {}}}", other, key)).find("cannot be combined"),
                std::string::npos)
          << other << key;
  EXPECT_NE(checkpointing_problems(R"({"policy": "fit"})", R"({"activation_checkpoint_interval": 4})")
                .find("pipeline.activation_checkpoint_interval"),
            std::string::npos);
  EXPECT_NE(checkpointing_problems(R"({"policy": "selective", "full_layers": "1"})").find("for all layers"),
            std::string::npos);
}

TEST(CheckpointingConfig, ContradictionsAreErrorsWithTheKeys) {
  EXPECT_NE(checkpointing_problems(R"({"interval": 3})", R"({"activation_checkpoint_interval": 4})")
                .find("activation_checkpointing.interval: 3 differs from "
                      "pipeline.activation_checkpoint_interval 4"),
            std::string::npos);
  EXPECT_NE(checkpointing_problems(R"({"interval": 3, "number_checkpoints": 2})").find("remove one"),
            std::string::npos);
  EXPECT_NE(checkpointing_problems(R"({"interval": 3, "policy": "selective"})").find("keeps no inputs"),
            std::string::npos);
  EXPECT_NE(checkpointing_problems(R"({"partition_activations": true, "policy": "selective"})")
                .find("keeps no inputs"),
            std::string::npos);
  EXPECT_NE(checkpointing_problems(R"({"policy": "some"})"), "");
  EXPECT_NE(checkpointing_problems(R"({"interval": -1})"), "");
  EXPECT_NE(checkpointing_problems(R"({"profile": true})").find("is not supported"), std::string::npos);
}

}  // namespace
}  // namespace cleave::config
