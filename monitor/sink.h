// Writes the events of a training run. An EventStream calls each sink on one thread, in the order of the
// events.
#pragma once
#include <chrono>
#include <string>

#include "monitor/event.h"

namespace cleave::monitor {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual std::string name() const = 0;                    // for messages: its key, option or file
  virtual EventKinds takes() const { return kAllEvents; }  // others do not reach it
  // If not zero, wake() is called when no event came for this time.
  virtual std::chrono::milliseconds interval() const { return std::chrono::milliseconds(0); }
  virtual void wake() {}
  // Called after the last event, unless the sink failed or is too slow. longest_end: how long a run waits for
  // it, in addition to EventStreamOptions::end.
  virtual void end() {}
  virtual std::chrono::milliseconds longest_end() const { return std::chrono::milliseconds(0); }
  // Each may take as long as it needs, and reports its own problems: an exception ends the use of the sink.
  virtual void take(const Started&) {}
  virtual void take(const Stepped&) {}
  virtual void take(const Evaluated&) {}
  virtual void take(const Measured&) {}
  virtual void take(const Communicated&) {}
  virtual void take(const Allocated&) {}
  virtual void take(const Checkpointed&) {}
  virtual void take(const Warned&) {}
  virtual void take(const Chosen&) {}
  virtual void take(const Said&) {}
  virtual void take(const Ended&) {}
};

}  // namespace cleave::monitor
