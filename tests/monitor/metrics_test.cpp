#include "monitor/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/scratch.h"

namespace cleave::monitor {
namespace {

using nlohmann::json;
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Metrics, AStepHasExactlyTheDocumentedFieldsInOrder) {
  const StepMetrics m{.step = 3,
                      .epoch = 1.5,
                      .loss = 2.5,
                      .lr = 1e-4,
                      .grad_norm = 0.75,
                      .loss_scale = 65536,
                      .skipped = true,
                      .skipped_total = 2,
                      .tokens = 4096,
                      .tokens_per_s = 12345.5,
                      .step_ms = 331.8,
                      .mfu = 0.41,
                      .comm_bytes = {{"all_gather", 10}, {"reduce_scatter", 1ll << 40}}};
  EXPECT_EQ(
      to_json(m),
      R"({"step":3,"epoch":1.5,"loss":2.5,"lr":0.0001,"grad_norm":0.75,"loss_scale":65536,"skipped":true,"skipped_total":2,)"
      R"("tokens":4096,"tokens_per_s":12345.5,"step_ms":331.8,"mfu":0.41,)"
      R"("comm_bytes":{"all_gather":10,"reduce_scatter":1099511627776}})");
  EXPECT_EQ(json::parse(to_json({}))["comm_bytes"], json::object());
  EXPECT_NE(to_json({.loss_scale = 4294967296}).find("\"loss_scale\":4294967296,"), std::string::npos);
  EXPECT_FALSE(json::parse(to_json({})).contains("times_ms"));
}

TEST(Metrics, OfATimedStepContainTheTimesOfPhases) {
  StepMetrics m;
  m.times_ms = {{"forward", 1.5}, {"gathers", 0.25}};
  EXPECT_EQ(json::parse(to_json(m))["times_ms"], json::parse(R"({"forward":1.5,"gathers":0.25})"));
  const std::vector<Scalar> scalars = scalars_of(m);
  EXPECT_EQ(scalars.size(), scalars_of(StepMetrics{}).size() + 2);
  EXPECT_EQ(scalars.back().tag, "Train/Samples/elapsed_time_ms_gathers");
  EXPECT_EQ(scalars.back().value, 0.25);
}

TEST(Metrics, ChoicesAreReadFromOtherLinesAndLaterOnesCount) {
  const Scratch folder;
  const std::string path = folder.path("run.jsonl");
  {
    MetricsFile file(path);
    file.start("{}");
    file.choices({{"product 1 x 2", "00ff"}, {"GELU", "together"}});
    file.step({.step = 1});
    file.choices({{"GELU", "apart"}});
  }
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(choices_in(path), (Map{{"product 1 x 2", "00ff"}, {"GELU", "apart"}}));
}

TEST(Metrics, WithoutChoicesAreRejectedByTheirPath) {
  const Scratch folder;
  const std::string none = folder.path("none.jsonl"), empty = folder.path("empty.jsonl");
  MetricsFile(empty).start("{}");
  for (const auto& [path, why] : {std::pair{none, "cannot be read"}, {empty, "contains no choices"}}) try {
      choices_in(path);
      FAIL() << path << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::usage);
      EXPECT_NE(std::string(e.what()).find(path + " " + why), std::string::npos) << e.what();
    }
}

TEST(Metrics, AFloatLossIsReadBackBitForBit) {
  uint32_t bits = 1;
  for (int i = 0; i < 5000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float loss = std::bit_cast<float>(bits);
    if (!std::isfinite(loss)) continue;
    ASSERT_EQ(float(json::parse(to_json({.loss = loss}))["loss"].get<double>()), loss);
  }
}

TEST(Metrics, NonFiniteNumbersAreStrings) {
  const json line = json::parse(to_json({.loss = std::nan(""), .lr = -kInf, .grad_norm = kInf}));
  EXPECT_EQ(line["loss"], "nan");
  EXPECT_EQ(line["grad_norm"], "inf");
  EXPECT_EQ(line["lr"], "-inf");
}

TEST(MetricsFile, BeginsWithTheStartAndEndsWithTheEnd) {
  const Scratch scratch;
  const auto path = scratch.path("new/folder/m.jsonl");
  MetricsFile file(path);
  file.start("{\n \"world\": 2, \"config\": {\"zero\": [1, 2]},\n \"event\": \"other\"}");
  file.step({.step = 1});
  file.end(R"({"memory_peak": {"weights": 5}})");
  const std::string text = scratch.read("new/folder/m.jsonl");  // complete although the file is still open
  EXPECT_EQ(text.substr(0, text.find('\n')), R"({"event":"start","world":2,"config":{"zero":[1,2]}})");
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["step"], 1);
  EXPECT_EQ(lines[2], json::parse(R"({"event": "end", "memory_peak": {"weights": 5}})"));
}

TEST(MetricsFile, HasALineForEachEvaluation) {
  const Scratch scratch;
  const std::string path = scratch.path("m.jsonl");
  MetricsFile file(path);
  file.evaluation({.step = 20, .epoch = 0.5, .loss = 0});
  file.evaluation({.step = 20, .data = "a \"b\"", .loss = 1, .accuracy = 0.625});
  file.evaluation({.step = 40, .loss = std::nan("")});
  const std::vector<json> lines = lines_of(scratch.read("m.jsonl"));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(
      lines[0],
      (json{
          {"event", "evaluation"}, {"step", 20}, {"epoch", 0.5}, {"validation_loss", 0}, {"perplexity", 1}}));
  EXPECT_EQ(lines[1]["data"], "a \"b\"");
  EXPECT_NEAR(lines[1]["perplexity"].get<double>(), 2.718281828, 1e-8);
  EXPECT_EQ(lines[1]["accuracy"], 0.625);
  EXPECT_EQ(lines[2]["validation_loss"], "nan");
}

TEST(Metrics, OfAnEvaluationContainTheNameOfItsSet) {
  const auto drawn = [](const EvaluationMetrics& m) {
    std::vector<std::pair<std::string, double>> tags;
    for (const Scalar& s : scalars_of(m)) tags.emplace_back(s.tag, s.value);
    return tags;
  };
  using Tags = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(drawn({.loss = 2}), (Tags{{"Train/Samples/eval_loss", 2}}));
  EXPECT_EQ(drawn({.data = "code", .loss = 2, .accuracy = 0.5}),
            (Tags{{"Train/Samples/eval_loss_code", 2}, {"Train/Samples/eval_accuracy_code", 0.5}}));
}

TEST(MetricsFile, EveryLineIsWrittenAtOnce) {
  const Scratch scratch;
  MetricsFile file(scratch.path("m.jsonl"));
  for (int64_t step = 1; step <= 3; ++step) {
    file.step({.step = step});
    EXPECT_EQ(lines_of(scratch.read("m.jsonl")).size(), size_t(step));
  }
}

TEST(MetricsFile, ReplacesOrAppends) {
  const Scratch scratch;
  const auto path = scratch.path("m.jsonl");
  MetricsFile(path).step({.step = 1});
  MetricsFile(path, /*append=*/true).step({.step = 2});
  auto lines = lines_of(scratch.read("m.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["step"], 2);
  MetricsFile(path).step({.step = 3});
  lines = lines_of(scratch.read("m.jsonl"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["step"], 3);
  MetricsFile(scratch.path("fresh.jsonl"), /*append=*/true).step({.step = 4});
  EXPECT_EQ(lines_of(scratch.read("fresh.jsonl")).size(), 1u);
}

TEST(MetricsFile, RemovesAnIncompleteLineOfAKilledRun) {
  const Scratch scratch;
  auto appended = [&](std::string_view before) {
    MetricsFile(scratch.write("m.jsonl", before), true).step({.step = 9});
    return lines_of(scratch.read("m.jsonl"));
  };
  EXPECT_EQ(appended("{\"step\":1}\n{\"step\":2,\"lo").size(), 2u);
  EXPECT_EQ(appended("{\"st").size(), 1u);
  EXPECT_EQ(appended("{\"step\":1}").size(), 2u) << "a whole line without its end is kept";
  EXPECT_EQ(appended("").size(), 1u);
  const std::string torn = "{\"step\":2,\"x\":\"" + std::string(10000, 'x');
  EXPECT_EQ(appended("{\"step\":1}\n" + torn).size(), 2u);
}

TEST(MetricsFile, NamesTheFileThatCannotBeOpened) {
  const Scratch scratch;
  for (bool append : {false, true}) {
    const auto folder = scratch.path("");
    expect_error(Exit::usage, {folder, "Is a directory"}, [&] { MetricsFile(folder, append); });
    const auto below = scratch.write("file", "x") + "/m.jsonl";
    expect_error(Exit::usage, {below, "Not a directory"}, [&] { MetricsFile(below, append); });
  }
}

TEST(MetricsFile, AFullDiskIsOneWarningThatNamesTheFile) {
  MetricsFile file("/dev/full");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) file.step({});
  file.end("{}");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("warning: /dev/full: "), 0u) << said;
  EXPECT_NE(said.find("No space left"), said.npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(MetricsFile, RejectsFieldsThatAreNotAnObject) {
  const Scratch scratch;
  MetricsFile file(scratch.path("m.jsonl"));
  expect_error(Exit::internal, {"JSON object"}, [&] { file.start("[1]"); });
  expect_error(Exit::internal, {"JSON object"}, [&] { file.end("{"); });
}

TEST(Metrics, ScalarsHaveTheNamesOfDeepSpeed) {
  const auto scalars = scalars_of({.loss = 2, .lr = 0.5, .loss_scale = 8});
  ASSERT_GE(scalars.size(), 3u);
  EXPECT_EQ(scalars[0].tag, "Train/Samples/train_loss");
  EXPECT_EQ(scalars[0].value, 2);
  EXPECT_EQ(scalars[1].tag, "Train/Samples/lr");
  EXPECT_EQ(scalars[2].tag, "Train/Samples/loss_scale");
  EXPECT_EQ(scalars[2].value, 8);
}

}  // namespace
}  // namespace cleave::monitor
