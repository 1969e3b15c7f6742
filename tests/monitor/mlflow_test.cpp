// The place of an MLflow run, and the values that are sent to it. tests/app/mlflow_test.py has the requests.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "monitor/event_stream.h"
#include "monitor/mlflow_sink.h"
#include "monitor/mlflow_target.h"
#include "monitor/system_metrics.h"

namespace cleave::monitor {
namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string>;

MlflowTarget target(const config::MlflowConfig& config, const Variables& all) {
  return mlflow_target(config, [&](const char* name) {
    const auto at = all.find(name);
    return at == all.end() ? std::string() : at->second;
  });
}

config::MlflowConfig at(const std::string& uri) {
  config::MlflowConfig config;
  config.tracking_uri = uri;
  return config;
}

TEST(MlflowTarget, PlacesAreServersAzureMlOrFolders) {
  struct Case {
    const char *uri, *place;
    bool server, azure;
  };
  for (const Case& c : {Case{"", "mlruns", false, false}, Case{"runs/x", "runs/x", false, false},
                        Case{"file:///a/b", "/a/b", false, false}, Case{"file:a/b", "a/b", false, false},
                        Case{"http://h:5000/", "http://h:5000", true, false},
                        Case{"https://h/ml//", "https://h/ml", true, false},
                        Case{"azureml://r.api.azureml.ms/mlflow/v1.0/x?y=z",
                             "https://r.api.azureml.ms/mlflow/v1.0/x", true, true}}) {
    const MlflowTarget t = target({}, {{"MLFLOW_TRACKING_URI", c.uri}});
    EXPECT_EQ(t.place, c.place);
    EXPECT_EQ(t.server, c.server) << c.uri;
    EXPECT_EQ(t.azure, c.azure) << c.uri;
  }
  for (const char* uri : {"sqlite:///x.db", "postgresql://u:p@h/x", "databricks", "databricks://p", "uc"})
    EXPECT_THROW(target({}, {{"MLFLOW_TRACKING_URI", uri}}), Error) << uri;
}

TEST(MlflowTarget, KeysReplaceVariables) {
  const Variables all = {{"MLFLOW_TRACKING_URI", "http://h"},
                         {"MLFLOW_EXPERIMENT_NAME", "other"},
                         {"MLFLOW_EXPERIMENT_ID", "7"},
                         {"MLFLOW_RUN_NAME", "run"},
                         {"MLFLOW_TRACKING_TOKEN", "secret"}};
  const MlflowTarget empty = target({}, all);
  EXPECT_EQ(empty.experiment_id, "7");
  EXPECT_EQ(empty.run_name, "run");
  EXPECT_EQ(empty.token, "secret");
  const MlflowTarget given =
      target({.experiment_name = "mine", .run_name = "first", .tracking_uri = "https://me:pass@g"}, all);
  EXPECT_EQ(given.experiment_id, "");
  EXPECT_EQ(given.experiment_name, "mine");
  EXPECT_EQ(given.run_name, "first");
  EXPECT_EQ(given.place, "https://me:pass@g");
  EXPECT_EQ(given.shown(), "https://me:masked@g");
}

TEST(MlflowTarget, AUserReplacesATokenAndOnlyAzureMlHasTheTokenOfAJob) {
  const Variables all = {{"MLFLOW_TRACKING_USERNAME", "me"},
                         {"MLFLOW_TRACKING_PASSWORD", "word"},
                         {"MLFLOW_TRACKING_TOKEN", "t"}};
  EXPECT_EQ(target(at("http://h"), all).login, "me:word");
  EXPECT_EQ(target(at("http://h"), all).token, "");
  const Variables job = {{"AZUREML_RUN_TOKEN", "of the job"}, {"AZUREML_RUN_ID", "r"}};
  EXPECT_EQ(target(at("http://h"), job).token, "");
  EXPECT_EQ(target(at("azureml://h/mlflow/v1.0"), job).token, "of the job");
  EXPECT_EQ(target(at("azureml://h/mlflow/v1.0"), job).run_id, "r");
}

// Keeps the values of a sink; fails as often as the test asks.
struct Kept {
  std::mutex mutex;
  std::vector<MlflowMetric> metrics;
  MlflowText params, tags;
  std::map<std::string, std::string> files;
  std::string status;
  size_t most = 0;  // params per call
  int calls = 0, failures = 0;
  MlflowFailure::Kind kind = MlflowFailure::Kind::busy;
};

class Keeping final : public MlflowStore {
 public:
  explicit Keeping(Kept& kept) : kept_(kept) {}
  void open(const MlflowText&) override { call(); }
  void log(std::span<const MlflowMetric> metrics, const MlflowText& params, const MlflowText& tags) override {
    call();
    kept_.metrics.insert(kept_.metrics.end(), metrics.begin(), metrics.end());
    kept_.params.insert(params.begin(), params.end()), kept_.tags.insert(tags.begin(), tags.end());
    kept_.most = std::max(kept_.most, params.size());
  }
  size_t longest_param() const override { return 10; }
  void artifact(const std::string& name, const std::string& text) override {
    call(), kept_.files[name] = text;
  }
  void finish(std::string_view status, int64_t) override { call(), kept_.status = status; }

 private:
  void call() {
    ++kept_.calls;
    if (kept_.failures-- > 0) throw MlflowFailure(kept_.kind, "as asked");
  }
  Kept& kept_;
};

MlflowSinkOptions fast() {
  return {.place = "here", .interval = 1ms, .first_wait = 1ms, .patience = 10s, .end = 200ms};
}

MlflowSink sink(Kept& kept, MlflowSinkOptions options = fast()) {
  return {std::make_unique<Keeping>(kept), std::move(options)};
}

const MlflowMetric* find(const Kept& kept, const std::string& key) {
  for (const MlflowMetric& m : kept.metrics)
    if (m.key == key) return &m;
  return nullptr;
}

TEST(MlflowSink, ParametersAreFlatCutAndInCallsOfAHundred) {
  Kept kept;
  MlflowSink s = sink(kept);
  std::string fields = R"({"config": {"a.b": true, "c": {"d": [1, 2]}, "long": "0123456789\u00e4xyz")";
  for (int i = 0; i < 250; ++i) fields += ", \"k" + std::to_string(i) + "\": " + std::to_string(i);
  s.take(Started{.fields = fields + R"(}, "model": "tiny", "mesh": {"data": 2}, "step": 7})"});
  s.take(Ended{});
  s.end();
  EXPECT_EQ(kept.params.at("a.b"), "true");
  EXPECT_EQ(kept.params.at("c.d"), "[1,2]");
  EXPECT_EQ(kept.params.at("long"), "0123456789");
  EXPECT_EQ(kept.params.at("mesh.data"), "2");
  EXPECT_EQ(kept.params.at("model"), "tiny");
  EXPECT_EQ(kept.params.count("step"), 0U) << "differs after a resume";
  EXPECT_EQ(kept.params.size(), 255U);
  EXPECT_EQ(kept.most, 100U);
  EXPECT_EQ(kept.status, "FINISHED");
}

TEST(MlflowSink, FailuresAreRepeatedUntilEveryValueIsThereOnce) {
  Kept kept;
  kept.failures = 5;
  MlflowSink s = sink(kept);
  s.take(Started{.fields = "{}"});
  for (int i = 1; i <= 20; ++i)
    s.take(Stepped{.metrics = {.step = i, .loss = double(i)}, .samples = i}),
        std::this_thread::sleep_for(1ms);
  s.take(Ended{.stopped = true});
  s.end();
  std::map<int64_t, double> losses;
  for (const MlflowMetric& m : kept.metrics)
    if (m.key == "loss") {
      EXPECT_TRUE(losses.emplace(m.step, m.value).second) << m.step;
    }
  EXPECT_EQ(losses.size(), 20U);
  EXPECT_EQ(losses[20], 20);
  EXPECT_EQ(kept.status, "KILLED");
}

TEST(MlflowSink, ARunWithoutAnEndFailed) {
  Kept kept;
  MlflowSink s = sink(kept);
  s.take(Started{.fields = "{}"});
  s.end();
  EXPECT_EQ(kept.status, "FAILED");
}

TEST(MlflowSink, ARefusedRequestIsLeftOutAndOthersFollow) {
  Kept kept;
  kept.kind = MlflowFailure::Kind::refused;
  MlflowSink s = sink(kept);
  s.take(Started{.fields = R"({"model": "tiny"})"});
  kept.failures = 1;
  std::this_thread::sleep_for(2ms);
  s.take(Stepped{.metrics = {.step = 1}});
  std::this_thread::sleep_for(2ms);
  s.take(Stepped{.metrics = {.step = 2}});
  s.take(Ended{});
  s.end();
  ASSERT_NE(find(kept, "loss"), nullptr);
  EXPECT_EQ(find(kept, "loss")->step, 2);
  EXPECT_EQ(kept.status, "FINISHED");
}

TEST(MlflowSink, NothingIsSentAfterTheRunIsLost) {
  Kept kept;
  kept.failures = 1000, kept.kind = MlflowFailure::Kind::lost;
  {
    std::vector<std::unique_ptr<Sink>> one;
    one.push_back(std::make_unique<MlflowSink>(std::make_unique<Keeping>(kept), fast()));
    EventStream stream(std::move(one));
    stream.emit(Started{.fields = "{}"}), stream.emit(Stepped{}), stream.emit(Ended{});
  }
  EXPECT_EQ(kept.calls, 1);
}

TEST(MlflowSink, KeepsTheNewestMetricsOfAServerThatIsAwayForLong) {
  Kept kept;
  kept.failures = 1;
  MlflowSinkOptions options = fast();
  options.capacity = 10, options.first_wait = 500ms, options.end = 5s;
  MlflowSink s = sink(kept, options);
  s.take(Started{.fields = "{}"});
  for (int i = 1; i <= 100; ++i) s.take(Measured{{"a", double(i)}, i});
  s.take(Ended{});
  s.end();
  ASSERT_EQ(kept.metrics.size(), 10U);
  EXPECT_EQ(kept.metrics.front().step, 91);
  EXPECT_EQ(kept.metrics.back().step, 100);
}

TEST(MlflowSink, ADeadServerEndsWithinItsLimit) {
  Kept kept;
  kept.failures = 1000000, kept.kind = MlflowFailure::Kind::unreachable;
  MlflowSinkOptions options = fast();
  options.capacity = 10;
  const auto begin = std::chrono::steady_clock::now();
  MlflowSink s = sink(kept, options);
  s.take(Started{.fields = "{}"});
  for (int i = 1; i <= 100; ++i) s.take(Stepped{.metrics = {.step = i}});
  s.end();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  EXPECT_TRUE(kept.metrics.empty());
}

TEST(MlflowSink, OtherEventsHaveTheirNames) {
  Kept kept;
  MlflowSink s = sink(kept);
  s.take(Started{.fields = "{}", .files = {{"plan.json", "{}"}}});
  s.take(Evaluated{{.step = 4, .data = "books", .loss = 0.5, .accuracy = 0.25}, 8});
  s.take(Measured{{"Eval/my: score?", NAN}, 12});
  s.take(Allocated{Allocated::Kind::peak, 4, {{"device/weights", 64}}});
  s.take(Checkpointed{.path = "runs/a", .step = 4, .bytes = 5, .seconds = 2});
  s.take(Communicated{4, {{"all_reduce", {3, 96, 0.5}}}});
  s.take(Warned{"odd"});
  s.take(Ended{});
  s.end();
  const std::map<std::string, std::pair<double, int64_t>> wanted = {
      {"books/validation_loss", {0.5, 4}},           {"books/accuracy", {0.25, 4}},
      {"memory_peak_bytes/device/weights", {64, 4}}, {"checkpoint/save_bytes", {5, 4}},
      {"checkpoint/save_seconds", {2, 4}},           {"collectives/all_reduce/calls", {3, 4}},
      {"collectives/all_reduce/bytes", {96, 4}},     {"collectives/all_reduce/ms", {500, 4}}};
  for (const auto& [key, value] : wanted) {
    const MlflowMetric* m = find(kept, key);
    ASSERT_NE(m, nullptr) << key;
    EXPECT_EQ(m->value, value.first) << key;
    EXPECT_EQ(m->step, value.second) << key;
  }
  ASSERT_NE(find(kept, "Eval/my_ score_"), nullptr);
  EXPECT_TRUE(std::isnan(find(kept, "Eval/my_ score_")->value));
  EXPECT_EQ(kept.files.at("plan.json"), "{}");
  EXPECT_EQ(kept.files.at("warnings.txt"), "odd\n");
  EXPECT_EQ(kept.tags.at("cleave.checkpoint_save"), "runs/a");
}

TEST(SystemMetrics, AreTheDifferencesOfTheKernelsCounters) {
  const auto proc = std::filesystem::temp_directory_path() / ("proc_" + std::to_string(getpid()));
  std::filesystem::create_directories(proc);
  const auto write = [&](const char* name, const char* text) { std::ofstream(proc / name) << text; };
  write("meminfo", "MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:    250000 kB\n");
  write("stat", "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n");
  SystemMetrics system(proc.string());
  const auto value = [](const std::vector<Scalar>& all, const std::string& tag) {
    for (const Scalar& s : all)
      if (s.tag == tag) return s.value;
    return -1.0;
  };
  const auto first = system.sample();
  EXPECT_EQ(value(first, "system/cpu_utilization_percentage"), -1);
  EXPECT_DOUBLE_EQ(value(first, "system/system_memory_usage_megabytes"), 768);
  EXPECT_DOUBLE_EQ(value(first, "system/system_memory_usage_percentage"), 75);
  write("stat", "cpu  130 0 120 740 110 0 0 0 50 0\n");  // 50 of 100 ticks
  EXPECT_DOUBLE_EQ(value(system.sample(), "system/cpu_utilization_percentage"), 50);
  std::filesystem::remove_all(proc);
}

}  // namespace
}  // namespace cleave::monitor
