// Neighbouring parameters of a unit seen as one: the projections of queries, keys and values are three
// tensors in a checkpoint and one matrix product in a step. It works because a unit keeps parameters of equal
// decay in the order in which the layer declares them, without gaps (zero/flat_layout.h).
#pragma once
#include "model/layer.h"

namespace cleave::model {

// `parts` stacked along their first dim, without copying. They must agree in type and in the other dims, and
// each must begin where the one before it ends.
Tensor joined(std::span<const Tensor> parts);

// The gradient of all of `parts` as one. The caller writes it once, after accumulate(), as any other.
ParamGradient joined(std::span<ParamGradient> parts);

}  // namespace cleave::model
