// Marks the phase of a training step for the calls of a thread, for records of collectives.
#pragma once
#include <utility>

namespace cleave {

class PhaseMark {
 public:
  // `phase` is a literal.
  explicit PhaseMark(const char* phase) : before_(std::exchange(value_, phase)) {}
  ~PhaseMark() { value_ = before_; }
  PhaseMark(const PhaseMark&) = delete;
  PhaseMark& operator=(const PhaseMark&) = delete;

  static const char* current() { return value_; }  // of this thread; empty outside of all marks

 private:
  const char* before_;
  static inline thread_local const char* value_ = "";
};

}  // namespace cleave
