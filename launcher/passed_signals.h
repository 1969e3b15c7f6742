// Which signals a launcher passes on to its ranks: each once, and a second wish to stop kills.
#pragma once
#include <signal.h>

#include <algorithm>
#include <vector>

namespace cleave {

class PassedSignals {
 public:
  // What to send to the ranks; 0: nothing.
  int take(int signal) {
    if (signal == SIGCHLD) return 0;
    if (signal == SIGHUP) signal = SIGTERM;  // of a terminal that went away: programs rarely expect it
    const auto passed = [&](int s) { return std::count(passed_.begin(), passed_.end(), s) > 0; };
    if (signal != SIGUSR1 && (passed(SIGINT) || passed(SIGTERM))) return SIGKILL;
    if (passed(signal)) return 0;
    passed_.push_back(signal);
    return signal;
  }
  // Whether the ranks were asked to stop.
  bool asked_to_stop() const {
    return std::any_of(passed_.begin(), passed_.end(), [](int s) { return s != SIGUSR1; });
  }

 private:
  std::vector<int> passed_;
};

}  // namespace cleave
