// A unit of parameters as the parts of a ParameterStore know it, and the visits in which layers use units.
#pragma once
#include <vector>

#include "device/tensor.h"
#include "zero/flat_layout.h"
#include "zero/sharding.h"

namespace cleave::zero {

struct StoredUnit {
  FlatLayout layout;
  Sharding sharding;  // its groups are its own: another unit's gradients may be summed over other ranks

  const std::string& name() const { return layout.name(); }
  // What this rank holds of the working copy; and what its optimizer updates, which is part of that.
  int64_t shard_numel() const { return layout.numel() / sharding.parameter_shards(); }
  int64_t slice_numel() const { return layout.numel() / sharding.optimizer_shards(); }
  Range slice() const {  // in the flat order
    const int64_t at = sharding.reduce_each_micro->rank() * sharding.reduce_each_step->size() +
                       sharding.reduce_each_step->rank();
    return Range{0, slice_numel()}.shifted(at * slice_numel());
  }
  Range slice_of_shard() const {  // the slice's range of the working copy that this rank holds
    return Range{0, slice_numel()}.shifted(sharding.gather_on_publish->rank() * slice_numel());
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

}  // namespace cleave::zero
