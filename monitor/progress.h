// What a training run tells people: on a terminal one line that is drawn again and again, in a log a plain
// line now and then.
#pragma once
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace cleave::monitor {

struct ProgressOptions {
  std::FILE* out = nullptr;     // nullptr: silent, for all ranks but one
  int64_t total = 0;            // steps of the whole training
  int64_t done = 0;             // steps before this start, for a resumed run
  double epochs_done = 0;       // before this start
  int64_t steps_per_epoch = 0;  // 0: epochs are not shown
  bool is_terminal = false;
  int columns = 80;               // of the terminal
  double log_interval_s = 10;     // least time between plain lines
  std::function<double()> now{};  // seconds of any steady clock; empty = the system's
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After step `step` (1-based), which took so many tokens. The first and the last are always shown. Tokens a
  // second and the time left are both of the recent past, what lies between steps included: of the last
  // minute, or the last 16 steps where these took longer.
  void step(int64_t step, double loss, int64_t tokens);

  // Prints a message of its own line, above the bar.
  void line(std::string_view text);

  // Shows the latest step if it was not, and leaves the cursor on a fresh line. Nothing is shown afterwards
  // but line().
  void finish();

 private:
  void show();
  std::string status() const;
  double seconds_a_step() const;  // recent ones; not a number before the first

  ProgressOptions options_;
  struct Point {
    double time;
    int64_t step;
  };
  std::deque<Point> recent_;  // beginning with what step_ is compared with
  double shown_at_ = 0;
  int64_t step_ = 0, shown_step_ = 0, tokens_ = 0;
  double loss_ = 0;
  bool bar_drawn_ = false, finished_ = false;
};

// "0:07", "12:34", "3:02:01", "2 d 3 h".
std::string format_duration(double seconds);
// "812", "21.9 k", "1.2 M".
std::string format_rate(double tokens_per_s);

}  // namespace cleave::monitor
