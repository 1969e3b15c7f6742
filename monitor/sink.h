// Writes the events of a training run. An EventStream calls each sink on one thread, in the order of the
// events.
#pragma once
#include <string>

#include "monitor/event.h"

namespace cleave::monitor {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual std::string name() const = 0;                    // for messages: its key, option or file
  virtual EventKinds takes() const { return kAllEvents; }  // others do not reach it
  // Each may take as long as it needs, and reports its own problems: an exception ends the use of the sink.
  virtual void take(const Started&) {}
  virtual void take(const Stepped&) {}
  virtual void take(const Evaluated&) {}
  virtual void take(const Measured&) {}
  virtual void take(const Chosen&) {}
  virtual void take(const Said&) {}
  virtual void take(const Ended&) {}
};

}  // namespace cleave::monitor
