// Lines about a training for a person: the terminal of cleave train, and the output of PyTorch scripts.
#pragma once
#include <string>

#include "monitor/sink.h"

namespace cleave::monitor {

class LineSink : public Sink {
 public:
  using Sink::take;
  // Prints every steps_per_print-th step; 0: none.
  explicit LineSink(int64_t steps_per_print) : steps_per_print_(steps_per_print) {}
  EventKinds takes() const override { return kinds_of<Started, Stepped, Evaluated, Said, Ended>(); }
  void take(const Stepped& e) override;
  void take(const Evaluated& e) override;
  void take(const Said& e) override { print(e.text); }

 protected:
  virtual void print(const std::string& text) = 0;  // one or several lines, without the last line break

 private:
  int64_t steps_per_print_;
};

}  // namespace cleave::monitor
