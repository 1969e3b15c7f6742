// Progress display of a training run: one redrawn line on a terminal, or plain lines at intervals in a log.
#pragma once
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace cleave::monitor {

struct ProgressOptions {
  std::FILE* out = nullptr;     // nullptr: silent, for all ranks except one
  int64_t total = 0;            // steps of the whole training
  int64_t done = 0;             // steps before this start, for a resumed run
  double epochs_done = 0;       // before this start
  int64_t steps_per_epoch = 0;  // 0: hides epochs
  bool is_terminal = false;
  int columns = 80;               // of the terminal
  double log_interval_s = 10;     // minimum time between plain lines
  std::function<double()> now{};  // seconds of a steady clock; empty = system clock
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Reports step `step` (1-based), which processed `tokens` tokens. Always shows the first and the last step.
  // Tokens per second and the remaining time use recent steps, including the time between steps: the last
  // minute, or the last 16 steps if these took longer.
  void step(int64_t step, double loss, int64_t tokens);

  // Prints a message on a separate line above the bar.
  void line(std::string_view text);

  // Shows the latest step if it is not shown yet, and moves the cursor to a new line. Afterwards only line()
  // prints.
  void finish();

 private:
  void show();
  std::string status() const;
  double seconds_a_step() const;  // recent steps; NaN before the first

  ProgressOptions options_;
  struct Point {
    double time;
    int64_t step;
  };
  std::deque<Point> recent_;  // starts with the reference point for step_
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
