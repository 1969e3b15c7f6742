// Comparison of the ranks once per step, without a wait in the step: own times, which show a rank that is
// slower than its peers, and checksums of weights with copies on several ranks. The values of a step travel
// during the next one; at its end all ranks have the same values and draw the same conclusions.
#pragma once
#include <memory>

#include "config_schema/ds_config.h"
#include "runtime/step/rank_state.h"

namespace cleave::runtime {

class Pulse {
 public:
  // Null if the world has one rank or no transport, or if the configuration disables all comparisons. Rank 0
  // prints lines for people on stderr. `ranks` must outlive this object. Collective.
  static std::unique_ptr<Pulse> of(Ranks& ranks, const config::DsConfig& config, Device device);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  // Enqueues checksums of this step's share of the weights on `compute`. Call once per step at a time when
  // all ranks have published the same weights.
  void check(RankState& rank, int64_t step, Stream& compute);
  // Call at the end of the step with this number, after check(). Acts on the values of the step before, and
  // sends those of this one. Throws Error(training) on all ranks if weights differ and the policy is stop.
  // Collective.
  void end_step(RankState& rank, int64_t step, Stream& compute);

 private:
  struct State;
  explicit Pulse(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cleave::runtime
