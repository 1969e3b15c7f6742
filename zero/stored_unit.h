// A unit of parameters as the rooms of a ParameterStore know it, and the visits in which layers use units.
#pragma once
#include <vector>

#include "device/tensor.h"
#include "zero/flat_layout.h"
#include "zero/plan.h"

namespace cleave {

struct StoredUnit {
  FlatLayout layout;
  ZeroPlan plan;  // its groups are its own: another unit's gradients may be summed over other ranks

  const std::string& name() const { return layout.name(); }
  // Of the working copy, what this rank holds; and what its optimizer updates, which is part of that.
  int64_t shard_numel() const { return layout.numel() / plan.parameter_shards(); }
  int64_t slice_numel() const { return layout.numel() / plan.optimizer_shards(); }
  Range slice() const {  // in the flat order
    const int64_t at =
        plan.reduce_each_micro->rank() * plan.reduce_each_step->size() + plan.reduce_each_step->rank();
    return Range{0, slice_numel()}.shifted(at * slice_numel());
  }
  Range slice_of_shard() const {  // the slice's place in the working copy that this rank holds
    return Range{0, slice_numel()}.shifted(plan.gather_on_publish->rank() * slice_numel());
  }
  // A parameter in the flat order's elements `full`, in its own shape.
  Tensor view(int param, const Tensor& full) const {
    Shape shape;
    for (int64_t d : layout.param(param).shape) shape.dims[size_t(shape.rank++)] = d;
    return full.slice(layout.range(param)).view(shape);
  }
};

// One stop of a pass: which units, whether their gradients are written, and whether their parameters are
// needed (a split backward's second part needs none).
struct Visit {
  std::vector<int> units;
  bool backward = false;
  bool parameters = true;
};

}  // namespace cleave
