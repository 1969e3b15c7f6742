// Where the time of training steps goes, added up from the events of a trace.
#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "device/trace.h"

namespace cleave::monitor {

// Work on different streams overlaps, so phases may add up to more than the step.
enum class Phase : uint8_t {
  data,        // the host waits for the next micro-batch
  forward,     // the layers' computations, also of recomputed ones that are not part of a backward
  backward,    // with what it computes again
  reductions,  // reduce-scatter and all-reduce
  gathers,     // all-gather and broadcast
  exchanges,   // send, receive and all-to-all
  update,      // the optimizer
  offload,     // weights, gradients, state and kept inputs on their way from and to where they live
  checkpoint,  // saving
};
inline constexpr int kPhases = 9;
std::string_view name_of(Phase phase);

// Milliseconds by phase.
using PhaseTimes = std::array<double, kPhases>;

// Adds up events and times of one or more steps. An event counts without what is nested in it on its stream:
// a forward that contains a gather counts as long as it computes.
class StepTimes {
 public:
  void see(const TraceEvent& event);
  void add(Phase phase, double ms) { times_[size_t(phase)] += ms; }
  // What was added since the last call.
  PhaseTimes take();

 private:
  struct Open {
    Phase phase;
    double end_us;
  };
  std::map<const Stream*, std::vector<Open>> open_;  // events that later ones may be nested in
  PhaseTimes times_{};
};

// "time (ms) | step: 81.2 [80.9 to 81.5] | forward: 30.1 [29.8 to 30.2] | ...": means over `steps` of the
// first rank, with the least and the most of all ranks where there are several. Phases that took no time
// anywhere are left out. step_ms and totals are sums over the steps, by rank.
std::string format_times(const std::vector<double>& step_ms, const std::vector<PhaseTimes>& totals,
                         int64_t steps);

}  // namespace cleave::monitor
