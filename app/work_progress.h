#pragma once
#include <chrono>
#include <functional>
#include <string>

namespace cleave::app {

// How far a piece of work is, on stderr: one line that is drawn again on a terminal, elsewhere a line now and
// then. Draws nothing before there is something to wait for.
class WorkProgress {
 public:
  explicit WorkProgress(bool shown) : shown_(shown) {}
  ~WorkProgress();
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;

  // So much of the work is done, 0 to 1; `says` is asked for its words when a line is due, and the time that
  // is left stands behind them.
  void at(double share, const std::function<std::string(double seconds)>& says);

 private:
  using Clock = std::chrono::steady_clock;
  bool shown_, terminal_ = on_terminal(), drawn_ = false;
  Clock::time_point begin_ = Clock::now(), said_ = begin_;

  static bool on_terminal();
};

}  // namespace cleave::app
