// Says to launchers on other hosts, once a second, that this one is there: a blank line on each descriptor. A
// connection that goes without a word, as when a cable is pulled, ends nothing by itself.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <vector>

namespace cleave::launcher {

// A launcher that hears no line for so long takes the one that started it for gone.
inline constexpr std::chrono::seconds kLongestSilence{10};

// Lines come from a process of its own, so that a launcher that only stands still (Ctrl-Z, a debugger, a
// terminal that takes no output) is not taken for one that is gone. It dies with this process's thread. The
// descriptors must not block; they are open there as well, so one that is closed here reaches its end only
// when this object is gone.
class Heartbeat {
 public:
  explicit Heartbeat(const std::vector<int>& descriptors);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  pid_t pid_ = -1;
};

}  // namespace cleave::launcher
