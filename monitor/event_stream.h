// Passes events of a training to sinks, each on a thread beside the steps, so that a slow file or server
// slows neither a step nor another sink.
#pragma once
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "monitor/sink_thread.h"

namespace cleave::monitor {

struct EventStreamOptions {
  size_t capacity = 8192;               // events that may wait for a sink
  std::chrono::milliseconds end{5000};  // longest wait for all sinks at the end
};

class EventStream {
 public:
  explicit EventStream(std::vector<std::unique_ptr<Sink>> sinks, EventStreamOptions options = {});
  ~EventStream() { close(); }
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  // Never waits. If as many events as the capacity wait for a sink, it misses the event, which is counted;
  // events that a run has only a few times (Started, Evaluated, Chosen, Ended) always find a place.
  void emit(Event event);
  // Waits until sinks have taken all events so far, at most EventStreamOptions::end. Returns false if they
  // have not.
  bool flush();
  // Ends as flush() does, and then leaves sinks that still work to themselves. If events were lost, prints a
  // warning per sink with their number to stderr. Later events have no effect.
  void close();

 private:
  std::list<SinkThread> threads_;
  EventStreamOptions options_;
};

}  // namespace cleave::monitor
