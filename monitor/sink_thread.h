// A sink on its own thread, with a bounded queue of events.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "monitor/sink.h"

namespace cleave::monitor {

class SinkThread {
 public:
  // The thread starts with the first event. capacity: events that may wait.
  SinkThread(std::unique_ptr<Sink> sink, size_t capacity);
  // Leaves a sink that still works to itself.
  ~SinkThread() { close(std::chrono::steady_clock::now()); }
  SinkThread(const SinkThread&) = delete;
  SinkThread& operator=(const SinkThread&) = delete;

  // Never waits. If the queue is full, drops and counts the event, unless the run has such events only a few
  // times.
  void emit(std::shared_ptr<const Event> event);
  // Waits until the sink has taken all events so far; returns false if it has not at `until`.
  bool flush(std::chrono::steady_clock::time_point until);
  // Returns true if the sink collects events for an interval.
  bool waits() const;
  // Tells the thread that no event follows; the sink then ends.
  void finish();
  // Waits until the sink has ended, at most until `until` and Sink::longest_end() after finish(). If events
  // were lost, warns with their number.
  void close(std::chrono::steady_clock::time_point until);
  int64_t dropped() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace cleave::monitor
