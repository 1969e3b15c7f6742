// Owns the weights and gradients of the local layers by unit: sharding, homes and transfers. Depends only on
// the communicators and homes of each unit's sharding, not on ZeRO stages or offload settings. A driver
// fetches whole units, gives their gradients and reduces them, in any order and any number of times, and owns
// the memory for that. PlannedVisits is the driver if all visits are known before training.
#pragma once
#include <deque>
#include <span>

#include "zero/gradient_shards.h"
#include "zero/weight_shards.h"

namespace cleave::zero {

class ParameterStore {
 public:
  // The streams may be the same. All collectives run on comm. See WeightShards for from_home.
  ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm,
                 Stream& from_home);
  ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
      : ParameterStore(memory, options, compute, comm, comm) {}

  // Adds a unit before the driver's commit. The sharding holds the unit's own groups; all units share one
  // home of gradients.
  int add_unit(UnitSpec spec, const Sharding& sharding);
  void show_in(Trace& trace);  // traces transfers to and from homes; the trace must outlive the store

  int units() const { return int(units_.size()); }
  const FlatLayout& layout(int unit) const { return units_[size_t(unit)].layout; }
  const StoreOptions& options() const { return options_; }

  // Interface for the driver. A step is begin_step, fetches and gradients, then wait_for_gradients; after
  // that, work enqueued on compute sees the reduced gradients. unscale: see GradientShards::begin_step.
  WeightShards& weights() { return weights_; }
  GradientShards& gradients() { return gradients_; }
  void begin_step(double unscale) { weights_.begin_step(), gradients_.begin_step(unscale); }
  void wait_for_gradients();

  // Interface for the optimizer: this rank's slice of the unit's flat order, and views of it at home.
  Range slice(int unit) const { return units_[size_t(unit)].slice(); }
  // On disk: has a type and a size, but no memory.
  Tensor weights_slice(int unit) const { return weights_.slice(unit); }
  // Like weights_slice with the values of the last step, read from disk if necessary; valid until the next
  // call.
  Tensor settled_weights_slice(int unit) { return weights_.settled_slice(unit); }
  // Returns the destination of the next values. Work enqueued on compute before publish(unit) must write all
  // of it.
  Tensor next_weights_slice(int unit) { return weights_.next_slice(unit); }
  Tensor gradient_slice(int unit) const { return gradients_.slice(unit); }  // empty for a frozen unit
  const GradientForm& gradient_form() const { return gradients_.form(); }
  // Returns the parts of the slice that this rank counts in the gradient norm and saves, relative to the
  // slice's begin. All ranks with slices of the unit return the same number of parts; some may be empty.
  std::vector<Range> counted(int unit) const;
  // Brings the updated slice of the working copy to its home and to the ranks that hold the whole unit. Waits
  // for the work on compute and for all events in `updated`.
  void publish(int unit, std::span<const Event> updated = {}) { weights_.publish(unit, updated); }
  // Returns each group with more than one rank that the units' shardings use, once, in an order that is the
  // same on all its ranks.
  std::vector<comm::Communicator*> groups() const;
  // Returns true if these groups gather some unit in pieces.
  bool gathers_in_pieces() const { return weights_.in_pieces(); }
  // Makes work enqueued on compute from now on see the published weights.
  void wait_for_weights() { weights_.wait_for_published(); }

  // Blocks until all disk reads and writes are done, and throws their errors. Call after the last pass.
  void synchronize_disk() { weights_.synchronize_disk(); }
  // Adds partial sums (fp64 or int64) of every unit over the ranks that hold its other slices, in rank order,
  // and with `replicas` also over the ranks that hold the same slice. The sums of unit u end at ends[u]. Sums
  // after the last unit's are added over the widest of these groups. Runs on the comm stream.
  void sum_over_slices(Tensor partial_sums, std::span<const int64_t> ends, std::string_view what,
                       bool replicas);

 private:
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::deque<StoredUnit> units_;  // the shards point to the units
  WeightShards weights_;
  GradientShards gradients_;
};

}  // namespace cleave::zero
