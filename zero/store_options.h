// Options of a ParameterStore.
#pragma once
#include "comm/communicator.h"
#include "config_schema/decay_rule.h"
#include "core/axis.h"
#include "offload/placement.h"

namespace cleave::zero {

struct StoreOptions {
  DType weights = DType::fp32;    // type of the working copy that layers see
  DType gradients = DType::fp32;  // type of accumulated gradients
  DType wire = DType::fp32;       // type of reductions on the network
  int64_t reduce_numel = comm::Call::kWhole, gather_numel = comm::Call::kWhole;  // elements per collective
  bool gathers_int8 = false;                // gathers weights as int8 blocks (WeightForm)
  int prefetch_visits = 1;                  // number of visits that a gather starts ahead
  int64_t prefetch_numel = 0;               // elements of that, if visits are learned
  int64_t live_numel = comm::Call::kWhole;  // maximum gathered elements for prefetching
  bool overlap = true;                      // reductions may overlap the backward pass; needs one more bucket
  bool trains = true;                       // false: inference only, without gradients
  config::DecayRule decays = {};            // selects the parameters with weight decay
  // Axes along which this rank is not the first. The first rank counts values that all ranks of an axis
  // share, in the norm and in checkpoints.
  AxisSet behind = {};

  // Exact sums: gradients and wire are int64. Layers write fp32, and the gradient of one visit is rounded
  // once to a multiple of 2^-grid. All further additions are integer, so the result does not depend on the
  // order. A contribution above `limit` multiples counts as an overflow.
  int grid = 0;
  double limit = 0x1p62;
  bool exact() const { return gradients == DType::int64; }

  offload::DiskHome disk = {};  // for parameters with disk home; tile_numel is unused
};

}  // namespace cleave::zero
