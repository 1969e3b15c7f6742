// Passes events of a training to sinks, each on a thread beside the steps, so that a slow file or server
// slows neither a step nor another sink.
#pragma once
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/warnings.h"
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

  // Returns true if a sink takes one of these kinds; other events need not be made.
  bool wants(EventKinds kinds) const { return (takes_ & kinds) != 0; }
  // Never waits, on any thread. If as many events as the capacity wait for a sink, it misses the event, which
  // is counted; events that a run has only a few times (Started, Evaluated, Allocated, Checkpointed, Chosen,
  // Ended) always find a place. After Started, the sinks also receive the warnings of this process, earlier
  // and later ones.
  void emit(Event event);
  // Waits until sinks have taken all events so far, at most EventStreamOptions::end. Returns false if they
  // have not.
  bool flush();
  // The same for sinks that write at once, as opposed to those with an interval, and at most this long.
  bool write_out(std::chrono::milliseconds most);
  // Ends the sinks: waits as flush() does, then Sink::longest_end() for each, and leaves sinks that still
  // work to themselves. If events were lost, warns once per sink with their number. Later events have no
  // effect.
  void close();

 private:
  std::mutex mutex_;  // of the next member
  std::list<SinkThread> threads_;
  EventStreamOptions options_;
  EventKinds takes_ = 0;
  std::optional<WarningListener> warnings_;
};

}  // namespace cleave::monitor
