// What computes with a rank's units: the driver of its store, and what else it needs memory for. An engine
// has one: its layers, or whoever drives it from outside.
#pragma once
#include "checkpoint/checkpoint.h"
#include "device/trace.h"
#include "zero/visits.h"

namespace cleave::runtime {

class Computation {
 public:
  virtual ~Computation() = default;
  virtual zero::Visits& visits() = 0;
  virtual void show_in(Trace&) {}  // from here on; the trace outlives this

  // What it keeps from step to step beside the units. A step that is skipped is begun and not joined.
  virtual void begin_step() {}
  virtual void join_step() {}  // collective
  // Whole tensors: of those that this rank holds all, or those that it speaks for.
  enum class Whose { held, spoken_for };
  virtual std::vector<checkpoint::Record> records(Whose) { return {}; }
};

}  // namespace cleave::runtime
