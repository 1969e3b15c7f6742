// Which signals a launcher passes on to its ranks: each once, and a second wish to stop kills.
// A cluster may send a signal to launchers and their ranks alike, and a launcher passes it on; so the same
// SIGTERM or SIGUSR1 within a second is the same wish. SIGINT is a person's.
#pragma once
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace cleave::launcher {

inline constexpr std::chrono::milliseconds kSameWish{1000};

// By which a rank is asked to stop.
inline constexpr int kStops[] = {SIGINT, SIGTERM, SIGUSR1};

class PassedSignals {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What to send to the ranks; 0: nothing.
  int take(int signal, Time now = std::chrono::steady_clock::now()) {
    if (signal == SIGCHLD) return 0;
    if (signal == SIGHUP) signal = SIGTERM;  // of a terminal that went away: programs rarely expect it
    if (signal == SIGTERM && now - asked_ < kSameWish) return 0;
    if (signal == SIGTERM) asked_ = now;
    const auto passed = [&](int s) { return std::count(passed_.begin(), passed_.end(), s) > 0; };
    if (signal != SIGUSR1 && asked_to_stop()) {
      killed_ = true;
      return SIGKILL;
    }
    if (passed(signal)) return 0;
    passed_.push_back(signal);
    return signal;
  }
  // Whether somebody did not wait for that.
  bool killed() const { return killed_; }
  // Whether the ranks were asked to stop.
  bool asked_to_stop() const {
    return std::any_of(passed_.begin(), passed_.end(), [](int s) { return s != SIGUSR1; });
  }

 private:
  std::vector<int> passed_;
  bool killed_ = false;
  Time asked_ = Time() - std::chrono::hours(1);  // by SIGTERM
};

}  // namespace cleave::launcher
