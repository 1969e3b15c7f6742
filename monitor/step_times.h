// Times of training steps by phase, summed from trace events.
#pragma once
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/trace.h"

namespace cleave::monitor {

// Work on different streams overlaps, so the sum of phases may exceed the step.
enum class Phase : uint8_t {
  data,        // the host waits for the next micro-batch
  forward,     // computations of layers, including recomputation outside of a backward
  backward,    // including its recomputation
  reductions,  // reduce-scatter and all-reduce
  gathers,     // all-gather and broadcast
  exchanges,   // send, receive and all-to-all
  update,      // the optimizer
  offload,     // transfers of weights, gradients, state and kept inputs from and to their homes
  checkpoint,  // saving
};
inline constexpr int kPhases = 9;
std::string_view name_of(Phase phase);

// Milliseconds by phase.
using PhaseTimes = std::array<double, kPhases>;

// Sums events and times of one or more steps. An event excludes events nested in it on its stream: a forward
// that contains a gather counts only its computation.
class StepTimes {
 public:
  void see(const TraceEvent& event);
  void add(Phase phase, double ms) { times_[size_t(phase)] += ms; }
  // Sums since the last call.
  PhaseTimes take();

 private:
  struct Open {
    Phase phase;
    double end_us;
  };
  std::map<const Stream*, std::vector<Open>> open_;  // events that may contain later ones
  PhaseTimes times_{};
};

// "time (ms) | step: 81.2 [80.9 to 81.5] | forward: 30.1 [29.8 to 30.2] | ...": means over `steps` of the
// first rank, with minimum and maximum of all ranks if there are several. Omits columns without time on all
// ranks. of_ranks: sums over the steps by rank, in the order of the names.
std::string format_times(std::span<const std::string_view> names,
                         const std::vector<std::vector<double>>& of_ranks, int64_t steps);

}  // namespace cleave::monitor
