#include "config_schema/elasticity.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "config_schema/read_config.h"

namespace cleave::config {
namespace {

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> out;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ',');) out.push_back(std::stoll(one));
  return out;
}

// elastic_batches.txt is written by DeepSpeed (make_deepspeed_fixtures.py).
TEST(Elasticity, BatchesAreThoseOfDeepSpeed) {
  std::ifstream file(FIXTURES "/elastic_batches.txt");
  std::string line;
  int cases = 0;
  for (std::getline(file, line); std::getline(file, line); ++cases) {
    ElasticityConfig rule;
    std::istringstream in(line);
    std::string micros, slash, valid;
    int64_t ranks = 0, train = 0, micro = 0;
    in >> rule.version >> rule.max_train_batch_size >> micros >> rule.min_gpus >> rule.max_gpus >>
        rule.num_gpus_per_node >> rule.prefer_larger_batch >> ranks >> slash;
    rule.micro_batch_sizes = numbers(micros);
    const ElasticBatch got = elastic_batch(rule, ranks);
    if (line.ends_with("refused")) {
      EXPECT_NE(got.error, "") << line;
      continue;
    }
    in >> train >> micro >> valid;
    EXPECT_EQ(got.error, "") << line;
    EXPECT_EQ(got.train, train) << line;
    EXPECT_EQ(got.micro, micro) << line;
    EXPECT_EQ(got.data_ranks, numbers(valid)) << line;
  }
  EXPECT_EQ(cases, 385);
}

ReadResult read(const std::string& members, int64_t ranks) {
  return read_ds_config("{" + members + "}", "f", {.world_size = ranks});
}

TEST(Elasticity, AFileGetsTheThreeBatchSizes) {
  const std::string rule =
      R"("elasticity": {"enabled": true, "max_train_batch_size": 100, "micro_batch_sizes": [2, 4], "version": 0.1)";
  for (const int64_t ranks : {1, 3, 12}) {  // 96 is the most divisible batch
    const ReadResult r = read(rule + "}", ranks);
    EXPECT_EQ(format(r.problems), "");
    EXPECT_EQ(r.config.train_batch_size, 96);
    EXPECT_EQ(r.config.train_micro_batch_size_per_gpu, 4);
    EXPECT_EQ(r.config.gradient_accumulation_steps, 24 / ranks);
  }
  EXPECT_EQ(
      format(read(rule + "}", 5).problems),
      "error: f:1:34: elasticity.max_train_batch_size: 5 data-parallel ranks do not divide the batch of 96; "
      "use one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 48\n");
  const std::string both = format(read(rule + R"(}, "train_batch_size": 8)", 1).problems);
  EXPECT_NE(
      both.find("error: f:1:109: train_batch_size: conflicts with elasticity.enabled, which computes it"),
      both.npos)
      << both;
  const ReadResult ignored =
      read(rule + R"(, "ignore_non_elastic_batch_info": true}, "train_batch_size": 8)", 2);
  EXPECT_EQ(
      format(ignored.problems),
      "warning: f:1:148: train_batch_size: has no effect: elasticity.enabled is true and computes it\n");
  EXPECT_EQ(ignored.config.train_batch_size, 96);
}

TEST(Elasticity, NodesShareTheirRanksWithModelParallelism) {
  const std::string file =
      R"("elasticity": {"enabled": true, "max_train_batch_size": 64, "micro_batch_sizes": [2], "num_gpus_per_node": 4,
         "model_parallel_size": 2}, "tensor_parallel": {"autotp_size": 2})";
  const ReadResult r =
      read(file, 8);  // 2 data-parallel ranks per node: batches of whole nodes are 2 * 12 * 2
  EXPECT_EQ(format(r.problems), "");
  EXPECT_EQ(r.config.train_batch_size, 48);
  EXPECT_EQ(r.config.gradient_accumulation_steps, 48 / 2 / 4);
}

TEST(Elasticity, WrongValuesAreNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"("micro_batch_sizes": [2])", "elasticity.enabled: needs elasticity.max_train_batch_size; set it"},
      {R"("max_train_batch_size": 8)", "elasticity.enabled: needs elasticity.micro_batch_sizes; set it"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2, 9])", "8 is below the micro-batch 9"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [])",
       "expected a list of one or more integers, each from 1 to 1000000000, got a list of 0"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2, 0])", "got [2, 0]"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "version": 0.15)",
       "expected 0.1 or 0.2, got 0.15"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "version": 0.3)", "from 0.1 to 0.2"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "model_parallel_size": 2)",
       "2 does not divide elasticity.num_gpus_per_node 1"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "num_gpus_per_node": 2, "model_parallel_size": 2)",
       "expected 1, got 2; it is the product of tensor, sequence and pipeline ranks"},
      {R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "version": 0.1, "min_gpus": 5, "max_gpus": 5)",
       "no number of ranks from elasticity.min_gpus 5 to elasticity.max_gpus 5 divides a batch"}};
  for (const auto& [members, says] : wrong) {
    const std::string problems =
        format(read(R"("elasticity": {"enabled": true, )" + std::string(members) + "}", 1).problems);
    EXPECT_NE(problems.find(says), std::string::npos) << members << "\n" << problems;
  }
}

}  // namespace
}  // namespace cleave::config
