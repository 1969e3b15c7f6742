// The passes that a stage makes over its layers, in the order that PlannedVisits plans memory and traffic
// for.
#pragma once
#include <functional>

#include "runtime/stage_layers.h"
#include "zero/planned_visits.h"

namespace cleave::runtime {

class Passes {
 public:
  // Adds the local layers' units to the store of the visits, with sharding_of(unit), and every pass.
  // Error(usage) where layers share a unit that they use differently.
  Passes(const StageLayers& layers, zero::PlannedVisits& planned,
         const std::function<zero::Sharding(const UnitSpec&)>& sharding_of);

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
