#include "monitor/progress.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "tests/scratch.h"

namespace cleave::monitor {
namespace {

// A progress display with a test clock and captured output.
class Display {
 public:
  Display(int64_t total, bool is_terminal, int columns = 80, int64_t done = 0) : out_(std::tmpfile()) {
    progress_.emplace(ProgressOptions{.out = out_,
                                      .total = total,
                                      .done = done,
                                      .is_terminal = is_terminal,
                                      .columns = columns,
                                      .log_interval_s = 10,
                                      .now = [this] { return now; }});
  }
  ~Display() {
    progress_.reset();
    std::fclose(out_);
  }

  Progress* operator->() { return &*progress_; }
  void destroy() { progress_.reset(); }

  std::string text() {
    std::string all(size_t(std::ftell(out_)), '\0');
    std::rewind(out_);
    EXPECT_EQ(std::fread(all.data(), 1, all.size(), out_), all.size());
    std::fseek(out_, 0, SEEK_END);
    return all;
  }

  double now = 1000;

 private:
  std::FILE* out_;
  std::optional<Progress> progress_;
};

std::vector<std::string> split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + by.size();
  }
  return parts;
}

TEST(Progress, ShowsTheEpochIfItsLengthIsKnown) {
  std::FILE* out = std::tmpfile();
  {
    Progress progress({.out = out, .total = 10, .steps_per_epoch = 4, .now = [] { return 0.0; }});
    progress.step(5, 2.5, 1000);
  }
  std::rewind(out);
  char line[100] = {};
  ASSERT_NE(std::fgets(line, sizeof line, out), nullptr);
  std::fclose(out);
  EXPECT_EQ(std::string(line).find("step 5/10  loss 2.5000  epoch 1.25  "), 0u) << line;
}

TEST(Progress, ALogHasTheFirstTheLastAndLinesAtIntervals) {
  Display display(100, false);
  for (int64_t step = 1; step <= 100; ++step) {
    display.now += 0.3;
    display->step(step, 5.0 / double(step), 300);
  }
  const auto lines = split(display.text(), "\n");
  ASSERT_EQ(lines.size(), 5u)
      << display.text();  // 1, two in the 30 seconds, 100, and nothing after the last newline
  EXPECT_EQ(lines[0], "step 1/100  loss 5.0000  1 k tokens/s  ETA 0:30");
  EXPECT_EQ(lines[1].rfind("step 35/100", 0), 0u) << lines[1];
  EXPECT_EQ(lines[2].rfind("step 69/100", 0), 0u) << lines[2];
  EXPECT_EQ(lines[3], "step 100/100  loss 0.0500  1 k tokens/s  ETA 0:00");
  EXPECT_EQ(lines[4], "");
  EXPECT_EQ(display.text().find('\x1b'), std::string::npos);
}

TEST(Progress, ATerminalHasOneLineThatIsRedrawn) {
  Display display(4, true, 80);
  for (int64_t step = 1; step <= 4; ++step) {
    display.now += 1;
    display->step(step, 2.5, 123456);
  }
  display->finish();
  const std::string text = display.text();
  const auto drawn = split(text, "\r\x1b[K");
  ASSERT_EQ(drawn.size(), 5u);
  EXPECT_EQ(drawn[0], "");
  EXPECT_EQ(drawn[1].size(), 79u);
  const size_t width = drawn[1].find(']') - 1;
  EXPECT_EQ(drawn[1].find('>'), 1 + width / 4) << "a quarter is done: " << drawn[1];
  EXPECT_NE(drawn[1].find("] 1/4  loss 2.5000  123 k tokens/s  ETA 0:03"), std::string::npos) << drawn[1];
  EXPECT_EQ(drawn[4].find(' '), drawn[4].find(']') + 1) << "the last bar is full: " << drawn[4];
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(Progress, ATerminalHasALimitedRedrawRate) {
  Display display(1000, true);
  for (int64_t step = 1; step < 1000; ++step) {
    display.now += 0.001;
    display->step(step, 1, 1);
  }
  EXPECT_LE(split(display.text(), "\r").size(), 12u);
}

TEST(Progress, NeverFillsTheLastColumn) {
  for (int columns : {1, 5, 20, 50, 60, 61, 62, 70, 200}) {
    Display display(100000, true, columns);
    display.now += 5;
    display->step(99999, 12.3456, 1'500'000);
    EXPECT_LT(split(display.text(), "\x1b[K").back().size(), size_t(columns)) << columns;
  }
}

TEST(Progress, MessagesAppearAboveTheBar) {
  Display display(10, true);
  display->line("before");
  display.now += 1;
  display->step(1, 1, 1);
  const std::string bar = split(display.text(), "\x1b[K").back();
  display->line("saved a checkpoint");
  EXPECT_EQ(display.text(), "before\n\r\x1b[K" + bar + "\r\x1b[Ksaved a checkpoint\n\r\x1b[K" + bar);
  display->finish();
  display->line("after");
  EXPECT_TRUE(display.text().ends_with(bar + "\nafter\n"));
}

TEST(Progress, MessagesInALogArePlainLines) {
  Display display(10, false);
  display->step(1, 1, 1);
  const std::string before = display.text();
  display->line("saved");
  EXPECT_EQ(display.text(), before + "saved\n");
}

TEST(Progress, AnEarlyEndShowsTheLatestStepOnce) {
  Display display(100, false);
  display->step(1, 1, 1);
  display->step(2, 1, 1);
  EXPECT_EQ(split(display.text(), "\n").size(), 2u);
  display->finish();
  display->finish();
  const auto lines = split(display.text(), "\n");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1].rfind("step 2/100", 0), 0u);
  display.destroy();
}

TEST(Progress, AResumedRunEstimatesFromItsSteps) {
  Display display(100, false, 80, 90);
  display.now += 6;
  display->step(92, 1, 1);  // 3 s per step, 8 left
  EXPECT_NE(display.text().find("ETA 0:24"), std::string::npos) << display.text();
}

// At 100 tokens per step, both values imply the same time per step.
TEST(Progress, RateAndTimeLeftAgreeBeforeDuringAndAfterAStall) {
  Display display(1000, true, 120);
  double rate = 0;
  for (int64_t step = 1; step <= 300; ++step) {
    display.now += step == 101 ? 50 : 0.5;
    display->step(step, 1, 100);
    const std::string shown = split(display.text(), "\x1b[K").back();
    rate = std::stod(shown.substr(shown.find("1.0000") + 6));
    const size_t eta = shown.find("ETA ") + 4;
    const double minutes = std::stod(shown.substr(eta)),
                 seconds = std::stod(shown.substr(shown.find(':', eta) + 1));
    EXPECT_NEAR((minutes * 60 + seconds) * rate / 100, double(1000 - step), 0.02 * double(1000 - step))
        << shown;
    if (step == 101) {
      EXPECT_LT(rate, 115) << "100 steps of half a second and one of 50: " << shown;
    }
  }
  EXPECT_EQ(rate, 200) << "the stall is past";
}

TEST(Progress, MarksUnknownValues) {
  Display display(0, true);
  display->step(0, std::nan(""), 0);
  EXPECT_NE(display.text().find("0/0  loss nan  ? tokens/s  ETA ?"), std::string::npos) << display.text();
}

TEST(Progress, IsSilentWithoutAFile) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  for (const bool is_terminal : {true, false}) {
    Progress progress({.total = 3, .is_terminal = is_terminal});
    progress.step(1, 1, 1);
    progress.line("x");
    progress.step(3, 1, 1);
    progress.finish();
  }
  std::fflush(nullptr);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, DurationsAreReadable) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(6.2), "0:07");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3600 * 3 + 121), "3:02:01");
  EXPECT_EQ(format_duration(86400 * 2 + 3600 * 3), "2 d 3 h");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(1.0 / 0.0), "?");
}

}  // namespace
}  // namespace cleave::monitor
