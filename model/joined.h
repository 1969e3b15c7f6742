// Views of adjacent parameters of a unit as one: the projections of queries, keys and values are three
// tensors in a checkpoint and one matrix product in a step. Relies on units keeping parameters of equal decay
// in declaration order without gaps (zero/flat_layout.h).
#pragma once
#include "model/layer.h"

namespace cleave::model {

// Stacks `parts` along their first dim without copying. They must agree in type and the other dims, and be
// contiguous in memory.
Tensor joined(std::span<const Tensor> parts);

// Returns the joint gradient of all `parts`. The caller writes it once, after accumulate(), like any other.
ParamGradient joined(std::span<ParamGradient> parts);

}  // namespace cleave::model
