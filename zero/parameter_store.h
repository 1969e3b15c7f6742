// Owns the weights and gradients of the local layers, one unit a layer. Layers borrow views for the duration
// of a call; only the store knows what is sharded, where it lives and when it travels. It contains no stage
// and no offload, only the communicators and homes of each unit's sharding: parameters are the GatherPool's,
// gradients the GradientBuckets'.
//
// Layers are visited in an order that is fixed before training (a pass). So the memory of gathered units and
// gradient buckets is planned once, gathers run ahead of their use, and reductions run behind the backward,
// with events only.
#pragma once
#include <deque>
#include <span>

#include "zero/gather_pool.h"
#include "zero/gradient_buckets.h"

namespace cleave::zero {

class ParameterStore {
 public:
  using Visit = cleave::zero::Visit;

  // compute and comm may be the same stream. All collectives run on comm.
  ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Set-up, in this order: every unit, every pass, commit. Its sharding names the unit's own groups; the home
  // of gradients is the same for all units.
  int add_unit(UnitSpec spec, const Sharding& sharding);
  int add_pass(std::vector<Visit> visits);
  void commit();
  void show_in(Trace& trace);  // what goes to homes and comes from them; the trace outlives the store

  int units() const { return int(units_.size()); }
  const FlatLayout& layout(int unit) const { return units_[size_t(unit)].layout; }
  const StoreOptions& options() const { return options_; }

  // A training step is begin_step, then passes in any order, each begin_pass and its visits in order, each
  // acquire [gradients] finish. `last`: no later pass of this step writes gradients of these units; each
  // unit's gradients are written in one kind of pass only. A pass without backward visits may stand alone.
  // unscale: what exact sums multiply a contribution by before it is rounded. user: is told of gradients
  // until wait_for_gradients; none: nobody is.
  void begin_step(double unscale = 1, GradientUser* user = nullptr);
  void begin_pass(int pass, bool last);
  // The parameters of the visit's units, if it needs them, for work enqueued on compute until finish(visit).
  std::vector<Tensor> acquire(int visit) { return pool_.acquire(visit); }
  // Of the same units; those of frozen ones are empty.
  std::vector<GradientSlot> gradients(int visit) { return buckets_.slots(visit); }
  void finish(int visit);

  // After the last pass of a step: work enqueued on compute from now on sees the reduced gradients.
  void wait_for_gradients();
  // What the optimizer walks: this rank's slice of the unit's flat order, and the views on it, at home.
  Range slice(int unit) const { return units_[size_t(unit)].slice(); }
  // One on disk has a type, a size and no memory.
  Tensor weights_slice(int unit) const { return pool_.slice(unit); }
  // The same with the values of the last step, which the disk may have to bring first; valid until the next
  // call.
  Tensor settled_weights_slice(int unit) { return pool_.settled_slice(unit); }
  // Where its next values go. Work enqueued on compute before publish(unit) writes all of it.
  Tensor next_weights_slice(int unit) { return pool_.next_slice(unit); }
  Tensor gradient_slice(int unit) const { return buckets_.slice(unit); }  // empty where the unit is frozen
  Tensor overflows() const { return buckets_.overflows(); }  // exact sums: int64 [1], not 0 when one was seen
  // The part of the slice that this rank counts in the gradient norm, relative to the slice's begin.
  Range norm_range(int unit) const;
  // After the slice of the working copy was updated, on compute and by the work before `updated`: brings it
  // to the ranks that hold the whole, and home.
  void publish(int unit, const Event& updated = {}) { pool_.publish(unit, updated); }
  // What collectives read and write, where it lives in device memory.
  std::vector<Tensor> device_buffers() const;
  // Work enqueued on compute from now on sees what was published.
  void wait_for_weights() { pool_.wait_for_published(); }

  // Blocks until the disk was read and written, and throws its faults. After the last pass.
  void synchronize_disk() { pool_.synchronize_disk(); }
  // Adds up partial sums, fp64 or int64, of every unit over the ranks that hold its other slices, in rank
  // order; `replicas`: and over those that hold the same. Unit u's sums end at ends[u], where the next one's
  // begin; those behind the last unit's are of all ranks that any unit's go over. On the comm stream.
  void sum_over_slices(Tensor partial_sums, std::span<const int64_t> ends, std::string_view what,
                       bool replicas);

 private:
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::deque<StoredUnit> units_;  // the pool and the buckets point to them
  GatherPool pool_;
  GradientBuckets buckets_;
};

}  // namespace cleave::zero
