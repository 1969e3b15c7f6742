// Unit of parameters in a ParameterStore, and the visits of layers to units.
#pragma once
#include <vector>

#include "device/tensor.h"
#include "zero/flat_layout.h"
#include "zero/sharding.h"

namespace cleave::zero {

struct StoredUnit {
  FlatLayout layout;
  Sharding sharding;  // its own groups: the gradients of other units may be summed over other ranks

  const std::string& name() const { return layout.name(); }
  // Elements of the working copy on this rank, and the part of them that its optimizer updates.
  int64_t shard_numel() const { return layout.numel() / sharding.parameter_shards(); }
  int64_t slice_numel() const { return layout.numel() / sharding.optimizer_shards(); }
  Range slice() const {  // in the flat order
    const int64_t at = sharding.reduce_each_micro->rank() * sharding.reduce_each_step->size() +
                       sharding.reduce_each_step->rank();
    return Range{0, slice_numel()}.shifted(at * slice_numel());
  }
  Range slice_of_shard() const {  // the slice's range in this rank's shard
    return Range{0, slice_numel()}.shifted(sharding.gather_on_publish->rank() * slice_numel());
  }
  // Returns a parameter as a view in its shape of `full`, the elements in flat order.
  Tensor view(int param, const Tensor& full) const {
    Shape shape;
    for (int64_t d : layout.param(param).shape) shape.dims[size_t(shape.rank++)] = d;
    return full.slice(layout.range(param)).view(shape);
  }
};

// One stop of a pass: the units, and flags for gradient writes and parameter reads (the second part of a
// split backward reads none).
struct Visit {
  std::vector<int> units;
  bool backward = false;
  bool parameters = true;
};

}  // namespace cleave::zero
