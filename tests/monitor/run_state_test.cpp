// The state of a run from the lines of its metrics: what a page, Prometheus and comparisons read.
#include "monitor/live/run_state.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "monitor/live/page.h"
#include "monitor/metrics.h"
#include "tests/scratch.h"

namespace cleave::monitor {
namespace {

using nlohmann::json;

json state_of(const RunState& run, int64_t after = 0) { return json::parse(run.as_json(after)); }

StepMetrics step_of(int64_t step, double loss) {
  return {
      .step = step, .loss = loss, .lr = 0.5, .tokens = 100, .step_ms = 20, .comm_bytes = {{"all_reduce", 8}}};
}

TEST(RunState, HasThePointsOfEachStepAndTheLastOfOtherEvents) {
  RunState run("a");
  EXPECT_TRUE(run.add(R"({"event":"start","model":"tiny","steps":9})"));
  EXPECT_TRUE(run.add(to_json(step_of(1, 4.5))));
  EXPECT_TRUE(run.add(to_json(step_of(2, NAN))));
  EXPECT_TRUE(run.add(R"({"event":"evaluation","step":2,"data":"books","validation_loss":3.5})"));
  EXPECT_TRUE(run.add(R"({"event":"warning","text":"slow"})"));
  EXPECT_TRUE(run.add(R"({"event":"later versions may add some"})"));
  const json state = state_of(run);
  EXPECT_EQ(state["name"], "a");
  EXPECT_EQ(state["start"]["model"], "tiny");
  EXPECT_EQ(state["columns"][0], "step");
  EXPECT_EQ(state["columns"][2], "loss");
  ASSERT_EQ(state["curve"].size(), 2);
  EXPECT_EQ(state["curve"][0][0], 1);
  EXPECT_EQ(state["curve"][0][2], 4.5);
  EXPECT_TRUE(state["curve"][1][2].is_null()) << "JSON has no NaN";
  EXPECT_EQ(state["evaluations"]["books"][0]["validation_loss"], 3.5);
  EXPECT_EQ(state["warnings"], json::array({"slow"}));
  EXPECT_TRUE(state["end"].empty());
  EXPECT_EQ(state_of(run, 1)["curve"].size(), 1) << "points after a step that the page has";
}

TEST(RunState, RejectsOtherText) {
  RunState run("a");
  for (const char* text : {"", "x", "[1]", "{}", R"({"step":"one"})", R"({"step":1e308})", R"({"step":-1})",
                           R"({"step":18446744073709551615})", R"({"event":1})", "{\"step\":1", "\xff\xfe"})
    EXPECT_FALSE(run.add(text)) << text;
  EXPECT_TRUE(state_of(run)["last"].empty());
}

TEST(RunState, APointOfALongRunIsAMeanOfEquallyManySteps) {
  RunState run("a");
  const int64_t steps = 5 * int64_t(RunState::kMostPoints) + 3;
  for (int64_t s = 1; s <= steps; ++s) run.add(to_json(step_of(s, double(s))));
  const json state = state_of(run);
  const auto stride = state["stride"].get<int64_t>();
  EXPECT_EQ(stride & (stride - 1), 0);
  EXPECT_LT(state["curve"].size(), RunState::kMostPoints);
  EXPECT_GE(state["curve"].size(), RunState::kMostPoints / 2);
  int64_t last = 0;
  for (const json& point : state["curve"]) {
    const auto step = point[0].get<int64_t>();
    EXPECT_EQ(step, last + stride);
    EXPECT_DOUBLE_EQ(point[2].get<double>(), double(last + 1 + step) / 2)
        << "mean of the steps since the last point";
    last = step;
  }
  EXPECT_EQ(state["last"]["step"], steps);
}

TEST(RunState, AResumedRunReplacesTheStepsThatItRepeats) {
  RunState run("a");
  for (int64_t s = 1; s <= 5; ++s) run.add(to_json(step_of(s, 1)));
  for (int64_t s = 4; s <= 6; ++s) run.add(to_json(step_of(s, 2)));
  const json curve = state_of(run)["curve"];
  ASSERT_EQ(curve.size(), 6);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(curve[i][0], i + 1);
    EXPECT_EQ(curve[i][2], i < 3 ? 1 : 2);
  }
}

TEST(RunState, ReadsAFileThatGrows) {
  const Scratch scratch;
  const std::string path = scratch.path("m.jsonl");
  std::ofstream(path) << to_json(step_of(1, 1)) << "\n" << to_json(step_of(2, 1)).substr(0, 20);
  RunState run("a");
  run.read(path);
  EXPECT_EQ(state_of(run)["curve"].size(), 1) << "the second line is not complete";
  std::ofstream(path, std::ios::app) << to_json(step_of(2, 1)).substr(20) << "\n";
  run.read(path);
  EXPECT_EQ(state_of(run)["curve"].size(), 2);
  run.read(path);
  EXPECT_EQ(state_of(run)["curve"].size(), 2);
}

TEST(RunState, NamesAFileWithoutMetrics) {
  const Scratch scratch;
  RunState run("a");
  expect_error(Exit::usage, {"nowhere.jsonl", "cannot be read"},
               [&] { run.read(scratch.path("nowhere.jsonl")); });
  expect_error(Exit::usage, {"x.jsonl", "not a metrics file", "hello", "--metrics"},
               [&] { run.read(scratch.write("x.jsonl", "hello\n")); });
}

// https://prometheus.io/docs/instrumenting/exposition_formats
TEST(RunState, IsTextOfPrometheus) {
  RunState run("a \"b\"\\c\n");
  run.add(R"({"event":"start","model":"tiny","world_size":2,"memory_planned":{"device":{"weights":1024}}})");
  run.add(to_json(step_of(1, 4.5)));
  run.add(to_json(step_of(2, INFINITY)));
  const std::string text = run.prometheus();
  for (const char* line :
       {R"(cleave_run_info{version="0.1.0",name="a \"b\"\\c\n",model="tiny"} 1)",
        "# TYPE cleave_step counter", "cleave_step 2", "cleave_loss +Inf", "cleave_step_seconds 0.02",
        "cleave_tokens_total 200", "cleave_ranks 2", R"(cleave_sent_bytes_total{collective="all_reduce"} 16)",
        R"(cleave_memory_planned_bytes{memory="device",use="weights"} 1024)"})
    EXPECT_NE(("\n" + text).find("\n" + std::string(line) + "\n"), std::string::npos) << line << " in\n"
                                                                                      << text;
}

TEST(Page, ContainsRunsWithoutEndingItsScript) {
  RunState run("</script><script>alert(1)</script>");
  run.add(to_json(step_of(1, 4.5)));
  const std::string runs[] = {run.as_json()};
  const std::string page = page_of(runs), empty = page_of();
  const auto count = [](const std::string& text, const std::string& word) {
    size_t n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count(page, "</script>"), count(empty, "</script>"));
  EXPECT_EQ(count(page, "alert(1)"), 1);
  EXPECT_EQ(count(page, "http"), count(empty, "http")) << "no reference to other files";
  const size_t begin = page.find("id=\"runs\">") + 10;
  EXPECT_EQ(json::parse(page.substr(begin, page.find("</script>", begin) - begin)),
            json::array({json::parse(runs[0])}));
}

}  // namespace
}  // namespace cleave::monitor
