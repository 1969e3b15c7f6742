// Working copy of the parameters by unit: each rank's shard in its home, fetches of the whole unit to the
// device, and publication of updated slices to the ranks that hold more than a slice. A driver decides when
// and where: GatherPool if all visits are known before training, RecordedVisits if they are learned.
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
  // The streams may be the same. All collectives run on comm. Shards away from the device are fetched on
  // from_home, which is comm unless every unit is gathered by this rank alone: transfers to homes, on comm,
  // then run at the same time.
  WeightShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm, Stream& from_home);

  // Set-up, in this order: add_unit for every unit, which must stay in place and outlive this object;
  // add_pass for every pass with known fetches, with their units in order, returning its index; commit.
  void add_unit(const StoredUnit& unit);
  int add_pass(const std::vector<int>& fetched);
  void commit();
  void show_in(Trace& trace);  // traces transfers from homes; the trace must outlive this object

  int units() const { return int(units_.size()); }
  const StoredUnit& unit(int unit) const { return *units_[size_t(unit)].of; }
  bool in_pieces() const { return crossing_.in_pieces(); }  // gathers of some unit

  // No shard is written between begin_step and end_step. A pass may also run outside a step.
  void begin_step() { disk_.begin_step(); }
  void end_step() { disk_.end_step(); }
  void begin_pass(int pass) { disk_.begin_pass(pass); }
  void begin_unknown_pass() { disk_.begin_unknown_pass(); }

  // Brings the last published unit to `full`, which is writable after `free`; the event marks it as ready.
  // Collective over the unit's gather_on_use. A known pass must fetch in its order.
  Event fetch(int unit, Tensor full, const Event& free);
  // Appends the parameters of a unit in `whole`. For a unit that is never fetched, `whole` is its shard.
  void add_views(int unit, const Tensor& whole, std::vector<Tensor>& to) const;
  Tensor shard(int unit) const { return units_[size_t(unit)].weights; }

  // Returns this rank's slice of the working copy, at home. On disk: has a type and a size, but no memory.
  Tensor slice(int unit) const;
  // Like slice with values, read from disk if necessary; valid until the next call.
  Tensor settled_slice(int unit);
  // Returns the destination of the next values. Work enqueued on compute before publish(unit) must write all
  // of it.
  Tensor next_slice(int unit);
  // Brings the updated slice to its home and to the ranks that hold the whole unit. Waits for the work on
  // compute and for all events in `updated`.
  void publish(int unit, std::span<const Event> updated);
  void wait_for_fetches();  // makes work enqueued on compute from now on run after all fetches
  bool on_disk() const { return disk_.shards() > 0; }
  void wait_for_published();  // makes work enqueued on compute from now on see the published weights
  int64_t version() const { return version_; }  // changes with the weights

  // Blocks until all disk reads and writes are done, and throws their errors. Call after the last pass.
  void synchronize_disk() { disk_.synchronize(); }

 private:
  struct Unit {
    const StoredUnit* of;
    Buffer weights = {};  // shard at home; undefined on disk
    int on_disk = -1;     // index of the shard on disk; -1: none
  };

  Memory& memory_;
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  Stream& from_home_;
  std::vector<Unit> units_;
  WeightCrossing crossing_;
  Event published_;  // compute has seen all published shards
  int64_t version_ = 0;
  Trace* trace_ = nullptr;
  DiskShards disk_;  // destroyed first: it finishes enqueued work
};

}  // namespace cleave::zero
