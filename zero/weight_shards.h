// The working copy of parameters by unit: each rank's shard in its home, the whole unit in memory of the
// device when it is fetched, and updated slices on their way to the ranks that hold more than a slice. When
// and where to is a driver's: one that knows every visit before training (GatherPool), or one that learns
// them (RecordedVisits).
#pragma once
#include <span>

#include "device/memory.h"
#include "device/trace.h"
#include "zero/disk_shards.h"
#include "zero/store_options.h"
#include "zero/stored_unit.h"
#include "zero/weight_crossing.h"

namespace cleave::zero {

class WeightShards {
 public:
  // compute and comm may be the same stream. All collectives run on comm.
  WeightShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Set-up, in this order: every unit, which stays where it is and outlives this; every pass whose fetches
  // are known, with their units in order, which is known by the number that is returned; commit.
  void add_unit(const StoredUnit& unit);
  int add_pass(const std::vector<int>& fetched);
  void commit();
  void show_in(Trace& trace);  // what comes from homes; the trace outlives this

  int units() const { return int(units_.size()); }
  const StoredUnit& unit(int unit) const { return *units_[size_t(unit)].of; }

  // No shard is written from begin_step to end_step. A pass may begin outside of a step as well.
  void begin_step() { disk_.begin_step(); }
  void end_step() { disk_.end_step(); }
  void begin_pass(int pass) { disk_.begin_pass(pass); }
  void begin_unknown_pass() { disk_.begin_unknown_pass(); }

  // Brings the whole unit, as it was published last, to `full`, which is free from `free` on; the event says
  // that it is there. A collective of the unit's gather_on_use. In a known pass in its order.
  Event fetch(int unit, Tensor full, const Event& free);
  // The parameters of a unit in `whole`, which for one that is never fetched is its shard.
  void add_views(int unit, const Tensor& whole, std::vector<Tensor>& to) const;
  Tensor shard(int unit) const { return units_[size_t(unit)].weights; }

  // This rank's slice of the working copy, at home. One on disk has a type, a size and no memory.
  Tensor slice(int unit) const;
  // The same with its values, which the disk may have to bring first; valid until the next call.
  Tensor settled_slice(int unit);
  // Where its next values go. Work enqueued on compute before publish(unit) writes all of it.
  Tensor next_slice(int unit);
  // After the slice was updated, on compute and by the work before all of `updated`: brings it to the ranks
  // that hold the whole, and home.
  void publish(int unit, std::span<const Event> updated);
  void wait_for_published();  // work enqueued on compute from now on sees what was published

  // Blocks until the disk was read and written, and throws its faults. After the last pass.
  void synchronize_disk() { disk_.synchronize(); }

 private:
  struct Unit {
    const StoredUnit* of;
    Buffer weights = {};  // the shard, at home; undefined on disk
    int on_disk = -1;     // there: which of the shards
  };

  Memory& memory_;
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::vector<Unit> units_;
  WeightCrossing crossing_;
  Event published_;  // compute has seen every shard that was published
  Trace* trace_ = nullptr;
  DiskShards disk_;  // goes first: it finishes what was enqueued
};

}  // namespace cleave::zero
