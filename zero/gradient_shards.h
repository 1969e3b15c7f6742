// Gradients by unit. Takes the whole gradient that layers wrote, sums it over the unit's ranks, and keeps the
// shard that the optimizer reads in its home. A driver decides where whole gradients lie and when they are
// complete: GradientBuckets if all visits are known before training, RecordedVisits if they are learned.
#pragma once
#include <memory>

#include "device/memory.h"
#include "device/trace.h"
#include "zero/gradient_crossing.h"
#include "zero/gradient_form.h"
#include "zero/store_options.h"
#include "zero/stored_unit.h"

namespace cleave::zero {

// Gradient that a layer adds to. `written` tells if it already holds a value, so it needs no zeroing. Both
// members are empty for a frozen unit.
struct GradientSlot {
  Tensor tensor;
  bool* written = nullptr;
};

class GradientShards {
 public:
  // Destination of the whole gradient of a unit.
  struct WholeGradient {
    Tensor bucket = {};  // of bucket_type; undefined if the unit has no bucket (Sharding::buckets)
    Tensor apart = {};   // fp32, of one visit, for a form that needs it (GradientForm::apart_numel)
    bool first = true;   // the bucket holds no value of this pass yet
    bool back = false;   // bring_back() was called for the bucket
  };

  // compute and comm may be the same stream. All collectives run on comm.
  GradientShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Set-up: add_unit for every unit, which must stay in place and outlive this object; then commit. Units may
  // be summed over different ranks, but share one home of gradients.
  void add_unit(const StoredUnit& unit);
  void commit();
  // Traces transfers to homes; the trace must outlive this object.
  void show_in(Trace& trace) { crossing_.show_in(trace); }

  int units() const { return int(units_.size()); }
  const StoredUnit& unit(int unit) const { return *units_[size_t(unit)].of; }
  bool trains(int unit) const { return units_[size_t(unit)].trains(); }
  bool buckets(int unit) const { return trains(unit) && this->unit(unit).sharding.buckets(); }
  DType bucket_type(int unit) const;
  DType widest_bucket() const;  // over all units
  // Returns the fp32 elements that a visit needs for the unit's gradient in addition to the bucket.
  int64_t apart_numel(int unit) const {
    return trains(unit) ? form_->apart_numel(this->unit(unit).layout.numel()) : 0;
  }
  const GradientForm& form() const { return *form_; }

  // Returns true if the unit's gradient, which its ranks sum once per step, may be summed before it is known
  // to be complete: reopen() makes room for what follows.
  bool can_reopen(int unit) const;

  // Begins a step: no unit has a gradient yet. unscale: see GradientForm::begin_step.
  void begin_step(double unscale);
  // Forgets all gradients of the step so far.
  void discard();
  // Returns true if the step has a gradient of this parameter in whole().
  bool holds(int unit, int param) const;
  // Returns true if the next whole gradient begins with the unit's gradient so far, from its home: a single
  // rank accumulates all micro-batches in one gradient. The copy is part of add_slots, unless bring_back()
  // enqueued it on comm ahead; compute must then wait for it.
  bool continues(int unit) const { return trains(unit) && units_[size_t(unit)].continues(); }
  void bring_back(int unit, Tensor bucket);
  // Appends a slot for every parameter of the unit, for work enqueued on compute before give().
  void add_slots(int unit, const WholeGradient& whole, std::vector<GradientSlot>& to);
  // Call after the visit wrote its gradient: converts the `apart` part and adds it to the bucket.
  void give(int unit, const WholeGradient& whole);
  // Call when the gradient is complete: sums the bucket, if any, over the ranks and adds the sum to the
  // shard. The bucket can be reused after this call's work on comm.
  void reduce(int unit, const WholeGradient& whole);
  // Like reduce, for a rank without a gradient: contributes zeros, which it writes to `bucket`.
  void join(int unit, Tensor bucket);
  void clear(int unit);  // sets zeros if no rank has a gradient in this step
  // Completes the sum over the data ranks. No gradient of the unit may follow in this step, except after
  // reopen on all ranks: then one rank keeps each part of the sum, so that another finish adds what follows.
  void finish(int unit);
  void reopen(int unit);

  Tensor slice(int unit) const;                                            // at home; empty for a frozen unit
  Tensor whole(int unit) const { return units_[size_t(unit)].gradients; }  // at home, with this rank's shards
  // After finish: gathers the sums of all slices into the memory of the unit's gradient on every rank, and
  // returns it. slice() stays a part of it. Only for floating-point gradients that are not sharded between
  // the visits of a step (stages 0 and 1). Runs on comm. Collective.
  Tensor gather(int unit);

 private:
  struct Unit {
    const StoredUnit* of;
    Buffer gradients = {};                 // numel / gradient_shards, at home
    std::unique_ptr<bool[]> written = {};  // by parameter, of the whole gradient being written
    bool reduced = false;                  // the shard holds a sum of this step
    bool begun = false;  // without buckets, for `apart` forms: the gradients hold a value of this step

    bool trains() const { return !of->layout.frozen(); }
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
  GradientCrossing crossing_;  // destroyed first: it finishes enqueued work
};

}  // namespace cleave::zero
