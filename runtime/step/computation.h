// What computes with a rank's units: the driver of its store, and what else it needs memory for. An engine
// has one: its layers, or whoever drives it from outside.
#pragma once
#include "device/trace.h"
#include "zero/visits.h"

namespace cleave::runtime {

class Computation {
 public:
  virtual ~Computation() = default;
  virtual zero::Visits& visits() = 0;
  virtual void show_in(Trace&) {}  // from here on; the trace outlives this
};

}  // namespace cleave::runtime
