#include <gtest/gtest.h>

#include <fmt/format.h>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

ReadResult read_tensor(const std::string& members, int64_t world) {
  return read_ds_config("{\"train_batch_size\": 24,\n" + members + "}", "f", {.world_size = world});
}
std::string tensor_problems(const std::string& members, int64_t world) {
  return format(read_tensor(members, world).problems);
}

TEST(TensorConfig, IsReadUnderBothNamesAndTheBatchIsDividedByTheRemainingRanks) {
  for (const char* form :
       {R"("tensor_parallel": {"autotp_size": 2})", R"("tensor_parallel": {"tp": {"tp_size": 2}})",
        R"("tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2}})"}) {
    const ReadResult r =
        read_tensor(std::string(form) + R"(, "pipeline": {"stages": 2}, "data_parallel_size": 3)", 12);
    EXPECT_EQ(format(r.problems), "") << form;
    EXPECT_EQ(r.config.tensor_parallel.size(), 2) << form;
    EXPECT_TRUE(r.config.tensor_parallel.sequence_parallel);
    EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 8) << form;  // 24 / (12 / 2 / 2)
  }
  EXPECT_FALSE(read_tensor(R"("tensor_parallel": {"autotp_size": 2, "sequence_parallel": false})", 2)
                   .config.tensor_parallel.sequence_parallel);
}

TEST(TensorConfig, OneRankIsTheDefaultInAnyForm) {
  for (const char* form :
       {"{}", "null", R"({"autotp_size": 0})", R"({"autotp_size": 1})", R"({"autotp_size": "auto"})",
        R"({"tp": {"tp_size": 1}})", R"({"tp": {"tp_size": 0}, "dtype": "torch.bfloat16"})"}) {
    const ReadResult r = read_tensor(std::string("\"tensor_parallel\": ") + form, 4);
    EXPECT_EQ(format(r.problems), "") << form;
    EXPECT_EQ(r.config.tensor_parallel.size(), 1) << form;
    EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 6) << form;
  }
}

TEST(TensorConfig, SizesThatDoNotDivideTheRanksAreErrorsWithTheDivisors) {
  EXPECT_EQ(
      tensor_problems(R"("tensor_parallel": {"autotp_size": 4})", 6),
      "error: f:2:21: tensor_parallel.autotp_size: 4 tensor ranks do not divide 6 ranks; use 1, 2, 3, 6\n");
  EXPECT_EQ(tensor_problems(R"("tensor_parallel": {"tp": {"tp_size": 4}}, "pipeline": {"stages": 2})", 12),
            "error: f:2:28: tensor_parallel.tp.tp_size: 4 tensor ranks do not divide 6 ranks of a pipeline "
            "stage; use 1, 2, 3, 6\n");
  EXPECT_EQ(tensor_problems(R"("tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}})", 8),
            "error: f:2:46: tensor_parallel.tp.tp_size: 4, but tensor_parallel.autotp_size is 2; both name "
            "the tensor-parallel size, so remove one\n");
  EXPECT_NE(tensor_problems(R"("tensor_parallel": {"autotp_size": -2})", 2), "");
  EXPECT_NE(tensor_problems(R"("tensor_parallel": {"autotp_size": "two"})", 2), "");
}

TEST(TensorConfig, ABatchThatDoesNotFitNamesBothAxes) {
  const std::string text =
      tensor_problems(R"("pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 2})", 20);
  EXPECT_NE(text.find("5 data-parallel ranks (20 ranks / 2 pipeline stages / 2 tensor ranks)"),
            std::string::npos)
      << text;
}

TEST(SequenceConfig, RanksOfASequenceShareTheSamplesOfOneDataParallelRank) {
  const ReadResult r = read_tensor(
      R"("sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 2}, "data_parallel_size": 3)", 12);
  EXPECT_EQ(format(r.problems), "");
  EXPECT_EQ(r.config.sequence_ranks(), 2);
  EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 8);  // 24 / (12 / 2 / 2)
  for (const char* form : {"null", "0", "1"}) {
    const ReadResult alone = read_tensor(std::string("\"sequence_parallel_size\": ") + form, 4);
    EXPECT_EQ(format(alone.problems), "") << form;
    EXPECT_EQ(alone.config.sequence_ranks(), 1) << form;
  }
}

TEST(SequenceConfig, SizesThatDoNotDivideTheRanksAreErrorsWithTheDivisors) {
  EXPECT_EQ(tensor_problems(R"("sequence_parallel_size": 4)", 6),
            "error: f:2:1: sequence_parallel_size: 4 sequence ranks do not divide 6 ranks; use 1, 2, 3, 6\n");
  EXPECT_EQ(tensor_problems(R"("sequence_parallel_size": 4, "pipeline": {"stages": 2})", 12),
            "error: f:2:1: sequence_parallel_size: 4 sequence ranks do not divide 6 ranks in addition to the "
            "pipeline and tensor ranks; use 1, 2, 3, 6\n");
  const std::string batch = tensor_problems(R"("sequence_parallel_size": 4)", 20);
  EXPECT_NE(batch.find("5 data-parallel ranks (20 ranks / 4 sequence ranks)"), std::string::npos) << batch;
  EXPECT_NE(tensor_problems(R"("sequence_parallel_size": -2)", 2), "");
}

// Groups of near ranks divide the data axis, which includes the ranks of sequences.
TEST(SequenceConfig, GroupsOfNearRanksMayBeThoseOfASequence) {
  EXPECT_EQ(tensor_problems(
                R"("sequence_parallel_size": 4, "zero_optimization": {"stage": 3, "mics_shard_size": 4})", 4),
            "");
}

TEST(TensorConfig, OverlapIsTheDevicesChoiceUnlessGiven) {
  const TensorParallelConfig unset =
      read_tensor(R"("tensor_parallel": {"autotp_size": 2})", 2).config.tensor_parallel;
  EXPECT_FALSE(unset.tp_overlap_comm.has_value());
  EXPECT_EQ(unset.overlap_rows, 256);
  for (const bool on : {false, true}) {
    const ReadResult r =
        read_tensor(fmt::format(R"("tensor_parallel": {{"autotp_size": 2, "tp_overlap_comm": {}}})",
                                on ? "true" : "false"),
                    2);
    EXPECT_EQ(format(r.problems), "");
    EXPECT_EQ(r.config.tensor_parallel.tp_overlap_comm, on);
  }
  EXPECT_EQ(
      tensor_problems(
          R"("tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": false, "overlap_rows": 64})", 2),
      "warning: f:2:65: tensor_parallel.overlap_rows: has no effect: tensor_parallel.tp_overlap_comm is "
      "false\n");
  EXPECT_NE(tensor_problems(R"("tensor_parallel": {"autotp_size": 2, "overlap_rows": -1})", 2), "");
}

TEST(TensorConfig, KeysThatOneRankDoesNotReadAreReportedAsIdle) {
  EXPECT_EQ(tensor_problems(R"("tensor_parallel": {"sequence_parallel": false})", 2),
            "warning: f:2:21: tensor_parallel.sequence_parallel: has no effect: tensor_parallel.autotp_size "
            "is 1\n");
}

}  // namespace
}  // namespace cleave::config
