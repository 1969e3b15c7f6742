// Events of a training reach their sinks in order, on a thread beside the steps.
#include "monitor/event_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

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

 private:
  void saw(const std::string& what) {
    door_.reached = true;
    std::unique_lock lock(door_.mutex);
    door_.opened.wait(lock, [&] { return door_.is_open; });
    door_.seen.push_back(what), door_.thread = std::this_thread::get_id();
  }
  Door& door_;
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
  const config::CsvConfig csv{.enabled = true, .output_path = folder.string(), .job_name = "job"};
  {
    std::vector<std::unique_ptr<Sink>> all = monitors_of({}, csv);
    all.push_back(std::make_unique<MetricsSink>("--metrics", std::make_unique<MetricsFile>(metrics)));
    EventStream stream(std::move(all));
    stream.emit(Started{.fields = R"({"steps": 2})"});
    stream.emit(step(1)), stream.emit(Measured{{"Eval/accuracy", 0.25}, 4});
    stream.emit(Evaluated{{.step = 1, .loss = 0.5}, 4});
    stream.emit(Chosen{{{"matmul", "fast"}}}), stream.emit(Said{"for a person"}), stream.emit(Ended{"{}"});
  }
  std::vector<std::string> kinds;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    kinds.push_back(nlohmann::json::parse(line).value("event", "step"));
  EXPECT_EQ(kinds, (std::vector<std::string>{"start", "step", "evaluation", "choices", "end"}));
  std::ifstream curve(folder / "job" / "Eval_accuracy.csv");
  const std::string text{std::istreambuf_iterator<char>(curve), {}};
  EXPECT_EQ(text, "step,accuracy\n4,0.25\n");
  EXPECT_TRUE(std::filesystem::exists(folder / "job" / "Train_Samples_eval_loss.csv"));
  std::filesystem::remove_all(folder);
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
  skipped.metrics.skipped = true, skipped.metrics.loss_scale = 8, skipped.metrics.skipped_total = 1;
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
