#pragma once
#include <chrono>
#include <functional>
#include <string>

namespace cleave::app {

// Progress of a task on stderr: one updated line on a terminal, otherwise occasional lines. Prints
// nothing for short tasks.
class WorkProgress {
 public:
  explicit WorkProgress(bool shown) : shown_(shown) {}
  ~WorkProgress();
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;

  // Reports the share of work done, 0 to 1. `says` returns the text when a line is due; the
  // remaining time is appended.
  void at(double share, const std::function<std::string(double seconds)>& says);

 private:
  using Clock = std::chrono::steady_clock;
  bool shown_, terminal_ = on_terminal(), drawn_ = false;
  Clock::time_point begin_ = Clock::now(), said_ = begin_;

  static bool on_terminal();
};

}  // namespace cleave::app
