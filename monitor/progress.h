// What a training run tells people: on a terminal one line that is drawn again and again, in a log a plain
// line now and then.
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace cleave {

struct ProgressOptions {
  std::FILE* out = nullptr;  // nullptr: silent, for all ranks but one
  int64_t total = 0;         // steps of the whole training
  int64_t done = 0;          // steps before this start, for a resumed run
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

  // After step `step` (1-based). The first and the last are always shown.
  void step(int64_t step, double loss, double tokens_per_s);

  // Prints a message of its own line, above the bar.
  void line(std::string_view text);

  // Shows the latest step if it was not, and leaves the cursor on a fresh line. Nothing is shown afterwards
  // but line().
  void finish();

 private:
  void show();
  std::string status() const;
  std::string eta() const;

  ProgressOptions options_;
  double start_, shown_at_ = 0;
  int64_t step_ = 0, shown_step_ = 0;
  double loss_ = 0, tokens_per_s_ = 0;
  bool bar_drawn_ = false, finished_ = false;
};

// "0:07", "12:34", "3:02:01", "2 d 3 h".
std::string format_duration(double seconds);

}  // namespace cleave
