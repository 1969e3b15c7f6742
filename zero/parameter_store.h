// Owns the weights and gradients of the local layers by unit: what is sharded, where it lives and when it
// travels is known here alone. It contains no stage and no offload, only the communicators and homes of each
// unit's sharding. It knows no order either: a driver fetches whole units, gives their gradients and has them
// reduced, each unit any number of times; what a driver needs memory for is its own. Where every visit is
// known before training, that is PlannedVisits.
#pragma once
#include <deque>
#include <span>

#include "zero/gradient_shards.h"
#include "zero/weight_shards.h"

namespace cleave::zero {

class ParameterStore {
 public:
  // compute and comm may be the same stream. All collectives run on comm.
  ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Before the driver's commit. Its sharding names the unit's own groups; the home of gradients is the same
  // for all units.
  int add_unit(UnitSpec spec, const Sharding& sharding);
  void show_in(Trace& trace);  // what goes to homes and comes from them; the trace outlives the store

  int units() const { return int(units_.size()); }
  const FlatLayout& layout(int unit) const { return units_[size_t(unit)].layout; }
  const StoreOptions& options() const { return options_; }

  // For the driver: a step is begin_step, then fetches and gradients, and wait_for_gradients, after which
  // work enqueued on compute sees the reduced gradients. unscale: GradientShards::begin_step.
  WeightShards& weights() { return weights_; }
  GradientShards& gradients() { return gradients_; }
  void begin_step(double unscale) { weights_.begin_step(), gradients_.begin_step(unscale); }
  void wait_for_gradients();

  // What the optimizer walks: this rank's slice of the unit's flat order, and the views on it, at home.
  Range slice(int unit) const { return units_[size_t(unit)].slice(); }
  // One on disk has a type, a size and no memory.
  Tensor weights_slice(int unit) const { return weights_.slice(unit); }
  // The same with the values of the last step, which the disk may have to bring first; valid until the next
  // call.
  Tensor settled_weights_slice(int unit) { return weights_.settled_slice(unit); }
  // Where its next values go. Work enqueued on compute before publish(unit) writes all of it.
  Tensor next_weights_slice(int unit) { return weights_.next_slice(unit); }
  Tensor gradient_slice(int unit) const { return gradients_.slice(unit); }  // empty where the unit is frozen
  const GradientForm& gradient_form() const { return gradients_.form(); }
  // The parts of the slice that this rank counts in the gradient norm and saves, relative to the slice's
  // begin: the same number on all ranks that have slices of the unit, so some may be empty.
  std::vector<Range> counted(int unit) const;
  // After the slice of the working copy was updated, on compute and by the work before all of `updated`:
  // brings it to the ranks that hold the whole, and home.
  void publish(int unit, std::span<const Event> updated = {}) { weights_.publish(unit, updated); }
  // The groups of its units' shardings that have more than one rank, each once, in an order that their ranks
  // have in common.
  std::vector<comm::Communicator*> groups() const;
  // Work enqueued on compute from now on sees what was published.
  void wait_for_weights() { weights_.wait_for_published(); }

  // Blocks until the disk was read and written, and throws its faults. After the last pass.
  void synchronize_disk() { weights_.synchronize_disk(); }
  // Adds up partial sums, fp64 or int64, of every unit over the ranks that hold its other slices, in rank
  // order; `replicas`: and over those that hold the same. Unit u's sums end at ends[u], where the next one's
  // begin; those behind the last unit's are of all ranks that any unit's go over. On the comm stream.
  void sum_over_slices(Tensor partial_sums, std::span<const int64_t> ends, std::string_view what,
                       bool replicas);

 private:
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::deque<StoredUnit> units_;  // the shards point to them
  WeightShards weights_;
  GradientShards gradients_;
};

}  // namespace cleave::zero
