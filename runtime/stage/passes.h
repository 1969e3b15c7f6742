// Passes of a stage over its layers, in the order that PlannedVisits plans memory and transfers for.
#pragma once
#include "runtime/stage/stage_layers.h"
#include "zero/planned_visits.h"

namespace cleave::runtime {

class Passes {
 public:
  // Adds every pass to the visits; their store must have the units of the local layers (units_of). Throws
  // Error(usage) if layers share a unit and its gradient is not complete at one known point of the step.
  Passes(const StageLayers& layers, zero::PlannedVisits& planned);

  struct OfChunk {
    int forward = 0;  // forward of all layers
    int train = 0;    // forward of all layers, then the whole backward
    int backward = 0, weight = 0;
    std::vector<Stop> fused, apart;  // stops of the backward in pass `train`, and in pass `backward`
  };
  const OfChunk& of(int chunk) const { return chunks_[size_t(chunk)]; }
  int evaluation() const { return evaluation_; }  // forward of the last chunk with the head

 private:
  std::vector<OfChunk> chunks_;
  int evaluation_ = 0;
};

}  // namespace cleave::runtime
