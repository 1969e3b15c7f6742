// Events of a training reach their sinks in order, on a thread beside the steps.
#include "monitor/event_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/warnings.h"
#include "monitor/metrics_sink.h"
#include "monitor/monitors.h"
#include "monitor/terminal_sink.h"

namespace cleave::monitor {
namespace {

using namespace std::chrono_literals;

// Records the kinds and numbers of its events; works until open() is called.
struct Door {
  std::mutex mutex;
  std::condition_variable opened;
  bool is_open = true;
  std::atomic<bool> reached = false;
  std::vector<std::string> seen;
  std::thread::id thread;
  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    opened.notify_all();
  }
};

class Recording : public Sink {
 public:
  using Sink::take;
  explicit Recording(Door& door) : door_(door) {}
  std::string name() const override { return "recording"; }
  void take(const Started&) override { saw("start"); }
  void take(const Stepped& e) override { saw(std::to_string(e.metrics.step)); }
  void take(const Evaluated&) override { saw("evaluation"); }
  void take(const Said& e) override { saw(e.text); }
  void take(const Ended&) override { saw("end"); }

 protected:
  void saw(const std::string& what) {
    door_.reached = true;
    std::unique_lock lock(door_.mutex);
    door_.opened.wait(lock, [&] { return door_.is_open; });
    door_.seen.push_back(what), door_.thread = std::this_thread::get_id();
  }

 private:
  Door& door_;
};

struct RecordingWarnings : Recording {
  using Recording::Recording;
  using Recording::take;
  void take(const Warned& e) override { saw("warning: " + e.text); }
};

struct Failing : Sink {
  using Sink::take;
  std::string name() const override { return "server"; }
  void take(const Stepped&) override { throw std::runtime_error("it is gone"); }
};

template <class... S>
std::vector<std::unique_ptr<Sink>> sinks(std::unique_ptr<S>... each) {
  std::vector<std::unique_ptr<Sink>> out;
  (out.push_back(std::move(each)), ...);
  return out;
}

Stepped step(int64_t number) { return {.metrics = {.step = number, .loss = 0.5}, .samples = 4 * number}; }

TEST(EventStream, PassesEventsInOrderOnAnotherThread) {
  Door door;
  std::vector<std::string> expected = {"start"};
  {
    EventStream stream(sinks(std::make_unique<Recording>(door)));
    stream.emit(Started{});
    for (int i = 1; i <= 500; ++i) stream.emit(step(i)), expected.push_back(std::to_string(i));
    stream.emit(Ended{});
  }
  expected.push_back("end");
  EXPECT_EQ(door.seen, expected) << "all events, although the stream ended at once";
  EXPECT_NE(door.thread, std::this_thread::get_id());
}

TEST(EventStream, FlushWaitsForAllEventsSoFar) {
  Door door;
  EventStream stream(sinks(std::make_unique<Recording>(door)));
  EXPECT_TRUE(stream.flush()) << "without events";
  for (int i = 1; i <= 100; ++i) {
    stream.emit(step(i));
    if (i % 10) continue;
    EXPECT_TRUE(stream.flush());
    EXPECT_EQ(door.seen.size(), size_t(i));
  }
}

// The sink takes nothing until the steps are over, so a stream that waits for it would never end.
TEST(EventStream, DropsAndCountsEventsInsteadOfWaitingForASinkAndOthersGetAll) {
  Door slow, fast;
  slow.is_open = false;
  ::testing::internal::CaptureStderr();
  {
    EventStream stream(sinks(std::make_unique<Recording>(slow), std::make_unique<Recording>(fast)),
                       {.capacity = 4});
    const auto seen = [&] {
      const std::lock_guard lock(fast.mutex);
      return fast.seen.size();
    };
    for (size_t i = 0; i < 25; ++i) {
      stream.emit(step(int64_t(i)));
      while (seen() <= i) std::this_thread::yield();  // the fast sink is never behind
      while (i == 0 && !slow.reached) std::this_thread::yield();
    }
    stream.emit(Evaluated{}), stream.emit(Ended{});
    slow.open();
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("warning: recording: 20 events were not written"), std::string::npos) << text;
  EXPECT_EQ(fast.seen.size(), 27u);
  ASSERT_EQ(slow.seen.size(), 7u) << "one in work, 4 that waited, and two that always find a place";
  EXPECT_EQ(std::vector(slow.seen.end() - 2, slow.seen.end()),
            (std::vector<std::string>{"evaluation", "end"}));
}

TEST(EventStream, EndsAlthoughASinkHangs) {
  static Door& door = *new Door;  // outlives the thread
  door.is_open = false;
  ::testing::internal::CaptureStderr();
  {
    EventStream stream(sinks(std::make_unique<Recording>(door)), {.capacity = 16, .end = 20ms});
    for (int i = 0; i < 3; ++i) stream.emit(step(i));
    EXPECT_FALSE(stream.flush());
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("warning: recording: 3 events were not written"), std::string::npos) << text;
  door.open();
  for (std::unique_lock lock(door.mutex); door.seen.empty();) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

TEST(EventStream, ASinkThatFailsEndsAloneWithOneWarning) {
  Door door;
  ::testing::internal::CaptureStderr();
  {
    EventStream stream(sinks(std::make_unique<Failing>(), std::make_unique<Recording>(door)));
    for (int i = 1; i <= 3; ++i) stream.emit(step(i));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: server: it is gone; this run adds nothing more to it\n");
  EXPECT_EQ(door.seen, (std::vector<std::string>{"1", "2", "3"}));
}

TEST(EventStream, FilesOfASinkHaveTheEventsOfTheirKind) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("event_stream_test_{}", getpid());
  const std::string metrics = (folder / "m.jsonl").string();
  config::DsConfig config;
  config.csv_monitor = {.enabled = true, .output_path = folder.string(), .job_name = "job"};
  {
    std::vector<std::unique_ptr<Sink>> all = monitors_of(config);
    all.push_back(std::make_unique<MetricsSink>("--metrics", std::make_unique<MetricsFile>(metrics)));
    EventStream stream(std::move(all));
    stream.emit(Started{.fields = R"({"steps": 2})"});
    stream.emit(step(1)), stream.emit(Measured{{"Eval/accuracy", 0.25}, 4});
    stream.emit(Evaluated{{.step = 1, .loss = 0.5}, 4});
    stream.emit(Allocated{.step = 1, .bytes = {{"device/weights", 8}}});
    stream.emit(Checkpointed{.path = "runs/a", .step = 1, .bytes = 8, .seconds = 0.5});
    stream.emit(Chosen{{{"matmul", "fast"}}}), stream.emit(Said{"for a person"}), stream.emit(Ended{"{}"});
  }
  std::vector<std::string> kinds;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    if (const auto kind = nlohmann::json::parse(line).value("event", "step"); kind != "warning")
      kinds.push_back(kind);  // other tests of this process warn
  EXPECT_EQ(kinds, (std::vector<std::string>{"start", "step", "evaluation", "checkpoint", "choices", "end"}));
  std::ifstream curve(folder / "job" / "Eval_accuracy.csv");
  const std::string text{std::istreambuf_iterator<char>(curve), {}};
  EXPECT_EQ(text, "step,accuracy\n4,0.25\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "job" / "Train_Samples_eval_loss.csv"));
  std::filesystem::remove_all(folder);
}

TEST(EventStream, WarningsBeforeTheStartFollowItAndLaterOnesComeInOrder) {
  note_warning("before the stream");
  Door door;
  {
    EventStream stream(sinks(std::make_unique<RecordingWarnings>(door)));
    note_warning("before the start");
    stream.emit(Started{});
    stream.emit(step(1));
    note_warning("between steps");
    stream.emit(step(2));
  }
  note_warning("after the end");
  const auto at = [&](const std::string& what) {
    return std::find(door.seen.begin(), door.seen.end(), what) - door.seen.begin();
  };
  const auto none = ptrdiff_t(door.seen.size());
  EXPECT_EQ(at("start"), 0);
  EXPECT_LT(at("warning: before the stream"), at("warning: before the start"));
  EXPECT_LT(at("warning: before the start"), at("1"));
  EXPECT_LT(at("1"), at("warning: between steps"));
  EXPECT_LT(at("warning: between steps"), at("2"));
  EXPECT_LT(at("2"), none);
  EXPECT_EQ(at("warning: after the end"), none);
}

// Counts its calls; its end takes as long as asked.
struct Calls {
  std::atomic<int> wakes = 0, events = 0, ends = 0, events_at_end = 0;
  std::chrono::milliseconds end{0}, longest_end{0};
};

class Server : public Sink {
 public:
  using Sink::take;
  explicit Server(std::shared_ptr<Calls> calls) : calls_(std::move(calls)) {}
  std::string name() const override { return "server"; }
  void take(const Stepped&) override { ++calls_->events; }
  std::chrono::milliseconds interval() const override { return 1ms; }
  void wake() override { ++calls_->wakes; }
  std::chrono::milliseconds longest_end() const override { return calls_->longest_end; }
  void end() override {
    std::this_thread::sleep_for(calls_->end);
    calls_->events_at_end = int(calls_->events);
    ++calls_->ends;
  }

 private:
  std::shared_ptr<Calls> calls_;
};

TEST(EventStream, CallsASinkBetweenEventsAndOnceAfterTheLast) {
  const auto calls = std::make_shared<Calls>();
  {
    EventStream stream(sinks(std::make_unique<Server>(calls)));
    stream.emit(step(1));
    while (calls->wakes < 2) std::this_thread::sleep_for(1ms);
    for (int i = 2; i <= 100; ++i) stream.emit(step(i));
    stream.close();
    EXPECT_EQ(calls->ends, 1);
  }
  EXPECT_EQ(calls->ends, 1);
  EXPECT_EQ(calls->events_at_end, 100);
}

TEST(EventStream, WaitsForTheEndOfASinkAsLongAsTheSinkSays) {
  const auto patient = std::make_shared<Calls>(), slow = std::make_shared<Calls>();
  patient->end = 300ms, patient->longest_end = 60s;
  slow->end = 60s, slow->longest_end = 10ms;
  for (const auto& calls : {patient, slow}) {
    EventStream stream(sinks(std::make_unique<Server>(calls)), {.end = 10ms});
    stream.emit(step(1));
    while (calls->events < 1) std::this_thread::sleep_for(1ms);
    stream.close();
  }
  EXPECT_EQ(patient->ends, 1);
  EXPECT_EQ(slow->ends, 0);  // the stream left it to itself
}

TEST(EventStream, MakesOnlyEventsThatASinkTakes) {
  std::vector<std::unique_ptr<Sink>> terminal;
  terminal.push_back(std::make_unique<TerminalSink>(TerminalOptions{}));
  const EventStream stream(std::move(terminal));
  EXPECT_FALSE(stream.wants(kinds_of<Allocated>()));
  EXPECT_FALSE((stream.wants(kinds_of<Communicated, Checkpointed, Warned>())));
  EXPECT_TRUE((stream.wants(kinds_of<Allocated, Stepped>())));
  EXPECT_FALSE(EventStream({}).wants(kAllEvents));
}

TEST(MetricsFile, HasALineForEachCheckpointAndWarning) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("lines_{}", getpid())).string();
  MetricsSink sink("--metrics", std::make_unique<MetricsFile>(path));
  sink.take(Checkpointed{Checkpointed::Kind::load, "runs/a b", 20, 4096, 0.25});
  sink.take(Warned{"a \"key\": odd"});
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text,
            "{\"event\":\"checkpoint\",\"kind\":\"load\",\"path\":\"runs/a b\",\"step\":20,\"bytes\":4096,"
            "\"seconds\":0.25}\n{\"event\":\"warning\",\"text\":\"a \\\"key\\\": odd\"}\n");
  std::filesystem::remove(path);
}

TEST(TerminalSink, PrintsStepsEvaluationsAndLinesInOrder) {
  char* data = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&data, &size);
  TerminalSink sink({.out = out, .steps_per_print = 2});
  sink.take(Said{"before"}), sink.take(Started{.steps = 2});
  sink.take(step(1)), sink.take(step(2)), sink.take(Evaluated{{.step = 2, .data = "books", .loss = 0}});
  Stepped skipped = step(3);
  skipped.time += 100;
  skipped.metrics.skipped = true, skipped.metrics.grad_norm = INFINITY, skipped.metrics.loss_scale = 8,
  skipped.metrics.skipped_total = 1;
  sink.take(skipped), sink.take(Ended{}), sink.take(Said{"after"});
  std::fclose(out);
  const std::string text(data, size);
  std::free(data);
  size_t at = 0;
  for (const char* part : {"before\n", "step 1/2  loss 0.5", "step 2/2", "step=2, skipped=0",
                           "step 2: validation loss of books 0, perplexity 1\n",
                           "step 3: gradients overflow at loss scale 8; skipped (1 so far)\n", "after\n"}) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in " << text;
    at = found;
  }
}

// Events may wait for the terminal, and its rates are those of the steps.
TEST(TerminalSink, MeasuresByTheTimesOfEvents) {
  char* data = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&data, &size);
  TerminalSink sink({.out = out});
  sink.take(Started{.time = 1000, .steps = 4});
  sink.take(Stepped{.time = 1010, .metrics = {.step = 1, .loss = 0.5, .tokens = 120}});
  std::fclose(out);
  const std::string text(data, size);
  std::free(data);
  EXPECT_NE(text.find("step 1/4  loss 0.5000  12 tokens/s  ETA 0:30\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace cleave::monitor
