// Decides which signals a launcher forwards to its ranks: each once; a second stop request kills. A cluster
// may signal launchers and ranks, and a launcher forwards signals too, so the same SIGTERM or SIGUSR1 within
// a second is one request. SIGINT comes from a person.
// SIGQUIT asks for flight records and is forwarded each time.
#pragma once
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace cleave::launcher {

inline constexpr std::chrono::milliseconds kSameWish{1000};

// Signals that ask a rank to stop.
inline constexpr int kStops[] = {SIGINT, SIGTERM, SIGUSR1};

class PassedSignals {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Signal to send to the ranks; 0: none.
  int take(int signal, Time now = std::chrono::steady_clock::now()) {
    if (signal == SIGCHLD) return 0;
    if (signal == SIGQUIT) return signal;
    if (signal == SIGHUP) signal = SIGTERM;  // of a closed terminal; programs rarely expect it
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
  // True after a second request.
  bool killed() const { return killed_; }
  // True if the ranks were asked to save, perhaps as a notice of the job's end.
  bool asked_to_save() const { return std::count(passed_.begin(), passed_.end(), SIGUSR1) > 0; }
  // True if the ranks were asked to stop.
  bool asked_to_stop() const {
    return std::any_of(passed_.begin(), passed_.end(), [](int s) { return s != SIGUSR1; });
  }

 private:
  std::vector<int> passed_;
  bool killed_ = false;
  Time asked_ = Time() - std::chrono::hours(1);  // last SIGTERM
};

}  // namespace cleave::launcher
