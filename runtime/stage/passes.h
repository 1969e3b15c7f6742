// The passes that a stage makes over its layers, in the order that PlannedVisits plans memory and traffic
// for.
#pragma once
#include "runtime/stage/stage_layers.h"
#include "zero/planned_visits.h"

namespace cleave::runtime {

class Passes {
 public:
  // Adds every pass to the visits, whose store has the units of the local layers (units_of). Error(usage)
  // where layers share a unit whose gradient would not be complete at one point of the step.
  Passes(const StageLayers& layers, zero::PlannedVisits& planned);

  struct OfChunk {
    int forward = 0;  // all layers
    int train = 0;    // the same, and the whole backward at once
    int backward = 0, weight = 0;
    std::vector<Stop> fused, apart;  // of a backward in the pass train, and in backward
  };
  const OfChunk& of(int chunk) const { return chunks_[size_t(chunk)]; }
  int evaluation() const { return evaluation_; }  // of the last chunk, forward with the head

 private:
  std::vector<OfChunk> chunks_;
  int evaluation_ = 0;
};

}  // namespace cleave::runtime
