// Native stacks of all threads of this process, collected in a signal handler or on a normal thread. Each
// thread takes its own stack with backtrace() in a signal (SIGURG, which does nothing without a handler),
// which is loaded at installation. A reader names the addresses later.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>

namespace cleave::launcher {

class ThreadStacks {
 public:
  static constexpr int kThreads = 512, kFrames = 48;

  struct Stack {
    int tid = 0;
    std::atomic<int> frames{0};  // 0: the thread blocks the signal, or did not answer in time
    void* addresses[kFrames] = {};
  };

  // Installs the handler of the process. Call once, before the first signal.
  static void install();
  // Async-signal-safe; one call at a time. Waits up to half a second. The result is valid until the next
  // call. `context`: of the signal that the caller handles, so that the caller's stack begins at the
  // interrupted function; null: none.
  static std::span<Stack> collect(const void* context);
};

}  // namespace cleave::launcher
