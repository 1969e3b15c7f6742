// What a ParameterStore is asked to do, as a value.
#pragma once
#include "comm/communicator.h"
#include "config_schema/decay_rule.h"
#include "core/axis.h"
#include "offload/placement.h"

namespace cleave::zero {

struct StoreOptions {
  DType weights = DType::fp32;    // the working copy that layers see
  DType gradients = DType::fp32;  // what gradients are accumulated in
  DType wire = DType::fp32;       // what crosses the network in reductions
  int64_t reduce_numel = comm::Call::kWhole, gather_numel = comm::Call::kWhole;  // elements in one collective
  bool gathers_int8 = false;                // weights are gathered as blocks of bytes (WeightForm)
  int prefetch_visits = 1;                  // how many visits ahead a gather starts
  int64_t live_numel = comm::Call::kWhole;  // but not while more than so many elements would be gathered
  bool overlap = true;                      // reductions may run behind the backward: one more bucket is kept
  bool trains = true;                       // false: no pass goes backward; there are no gradients
  config::DecayRule decays = {};            // what weight decay applies to
  // Along these axes this rank is not the first. The first one counts, in the norm and in checkpoints, what
  // all ranks of an axis have alike.
  AxisSet behind = {};

  // Exact sums: gradients and wire are int64. Layers write fp32, and what one visit gives is rounded once to
  // a multiple of 2^-grid; integers are added from there on, so no order shows in the bits. A contribution
  // above `limit` multiples counts as an overflow.
  int grid = 0;
  double limit = 0x1p62;
  bool exact() const { return gradients == DType::int64; }

  offload::DiskHome disk = {};  // of parameters whose home is the disk; tile_numel is not read
};

}  // namespace cleave::zero
