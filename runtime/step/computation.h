// Computation with a rank's units: the driver of its store, and other memory. Each engine has one: its
// layers, or an external driver.
#pragma once
#include "checkpoint/checkpoint.h"
#include "device/trace.h"
#include "zero/visits.h"

namespace cleave::runtime {

class Computation {
 public:
  virtual ~Computation() = default;
  virtual zero::Visits& visits() = 0;
  virtual void show_in(Trace&) {}  // traces from now on; the trace must outlive this object

  // Updates state other than the units from step to step. A skipped step is begun but not joined.
  virtual void begin_step() {}
  virtual void join_step() {}  // collective
  // Returns whole tensors: all that this rank holds, or only those that it saves for all ranks.
  enum class Whose { held, spoken_for };
  virtual std::vector<checkpoint::Record> records(Whose) { return {}; }
};

}  // namespace cleave::runtime
