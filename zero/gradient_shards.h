// Gradients by unit: from a whole gradient that layers have written, through its sum over the unit's ranks,
// to the shard that the optimizer reads, in its home. Where whole gradients lie, and when they are complete,
// is a driver's: one that knows every visit before training (GradientBuckets), or one that learns them
// (RecordedVisits).
#pragma once
#include <memory>

#include "device/memory.h"
#include "device/trace.h"
#include "zero/gradient_crossing.h"
#include "zero/gradient_form.h"
#include "zero/store_options.h"
#include "zero/stored_unit.h"

namespace cleave::zero {

// A gradient that a layer adds to; `written` says whether it holds something yet, so nothing has to be zeroed
// first. Both are empty where the unit is frozen.
struct GradientSlot {
  Tensor tensor;
  bool* written = nullptr;
};

class GradientShards {
 public:
  // Where the whole gradient of a unit is written.
  struct WholeGradient {
    Tensor bucket = {};  // of bucket_type; undefined where the unit has none (Sharding::buckets)
    Tensor apart = {};   // fp32, of one visit, for a form that asks for it (GradientForm::apart_numel)
    bool first = true;   // nothing was written to the bucket yet
  };

  // compute and comm may be the same stream. All collectives run on comm.
  GradientShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Set-up: every unit, which stays where it is and outlives this; commit. Units may be summed over different
  // ranks; the home of their gradients is the same.
  void add_unit(const StoredUnit& unit);
  void commit();
  void show_in(Trace& trace) { crossing_.show_in(trace); }  // what goes to homes; the trace outlives this

  int units() const { return int(units_.size()); }
  const StoredUnit& unit(int unit) const { return *units_[size_t(unit)].of; }
  bool trains(int unit) const { return units_[size_t(unit)].trains(); }
  bool buckets(int unit) const { return trains(unit) && this->unit(unit).sharding.buckets(); }
  DType bucket_type(int unit) const;
  DType widest_bucket() const;  // of all units
  // Elements of fp32 in which a visit writes the unit's gradient apart from its bucket.
  int64_t apart_numel(int unit) const {
    return trains(unit) ? form_->apart_numel(this->unit(unit).layout.numel()) : 0;
  }
  const GradientForm& form() const { return *form_; }

  // Once a step: nothing was given. unscale: GradientForm::begin_step.
  void begin_step(double unscale);
  // Adds a slot for every parameter of the unit, for work enqueued on compute before give().
  void add_slots(int unit, const WholeGradient& whole, std::vector<GradientSlot>& to);
  // After the visit has written: what it wrote apart comes into the bucket, in the gradients' form.
  void give(int unit, const WholeGradient& whole);
  // The gradient is whole: sums its bucket, where it has one, over the ranks and adds the sum to the shard.
  // Its memory may be used again behind this on comm.
  void reduce(int unit, const WholeGradient& whole);
  // The same for a rank that has nothing to give: its part is zeros, which are written to `bucket`.
  void join(int unit, Tensor bucket);
  void clear(int unit);  // no rank has anything in this step: zeros
  // Nothing of this step comes after it: what is left of the sum over the data ranks.
  void finish(int unit);

  Tensor slice(int unit) const;  // at home; empty where the unit is frozen

 private:
  struct Unit {
    const StoredUnit* of;
    Buffer gradients = {};                 // numel / gradient_shards, at home
    std::unique_ptr<bool[]> written = {};  // by parameter, of the whole gradient being written
    bool reduced = false;                  // the shard holds a sum of this step
    bool begun = false;  // written apart and without buckets: the gradients hold something of this step

    bool trains() const { return !of->layout.frozen(); }
    // A rank alone adds micro-batch after micro-batch to one gradient, which comes back to the bucket for it.
    bool continues() const { return reduced && of->sharding.reduce_each_micro->size() == 1; }
  };
  MemoryKind home() const;
  void clear_unwritten(Unit& unit, Tensor full);
  void reduce_bucket(Unit& unit, Tensor full);

  Memory& memory_;
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::vector<Unit> units_;
  std::unique_ptr<GradientForm> form_;
  GradientCrossing crossing_;  // goes first: it finishes what was enqueued
};

}  // namespace cleave::zero
