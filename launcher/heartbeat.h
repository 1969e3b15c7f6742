// Signals launchers on other hosts once per second that this one is alive: writes a blank line to each
// descriptor. A connection that fails silently, such as a pulled cable, is detected only by missing lines.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <vector>

namespace cleave::launcher {

// Time without a line after which a launcher considers the one that started it lost.
inline constexpr std::chrono::seconds kLongestSilence{10};

// A separate process writes the lines, so that a suspended launcher (Ctrl-Z, a debugger, a blocked terminal)
// is not considered lost. The process dies with the calling thread. Descriptors must be non-blocking. The
// process also holds them open, so a descriptor that is closed in the caller ends only when this object is
// destroyed.
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
