// The working copy of parameters: each unit's shard in its home, the whole unit on the device for the visits
// that use it, and updated slices on their way to the ranks that hold more than a slice.
//
// Visits come in an order that is fixed before training. So the memory of gathered units is planned once, and
// gathers run ahead of their use, with events only.
#pragma once
#include "device/memory.h"
#include "device/trace.h"
#include "zero/disk_shards.h"
#include "zero/stays.h"
#include "zero/store_options.h"
#include "zero/stored_unit.h"

namespace cleave::zero {

class GatherPool {
 public:
  // compute and comm may be the same stream. All collectives run on comm.
  GatherPool(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Set-up, in this order: every unit, which stays where it is and outlives this; every pass, which is known
  // by the number that is returned; commit.
  void add_unit(const StoredUnit& unit);
  int add_pass(std::vector<Visit> visits);
  void commit();
  void show_in(Trace& trace);  // what comes from homes; the trace outlives this

  // From begin_step to end_step no shard is written. A pass without backward visits needs neither.
  void begin_step() { disk_.begin_step(); }
  void end_step() { disk_.end_step(); }
  // A pass is begin_pass and its visits in order, each acquire and finish. The parameters of the visit's
  // units, if it needs them, are for work enqueued on compute before finish.
  void begin_pass(int pass);
  std::vector<Tensor> acquire(int visit);
  void finish();

  // This rank's slice of the working copy, at home. One on disk has a type, a size and no memory.
  Tensor slice(int unit) const;
  // The same with its values, which the disk may have to bring first; valid until the next call.
  Tensor settled_slice(int unit);
  // Where its next values go. Work enqueued on compute before publish(unit) writes all of it.
  Tensor next_slice(int unit);
  // After the slice was updated, on compute and by the work before `updated`: brings it to the ranks that
  // hold the whole, and home.
  void publish(int unit, const Event& updated);
  void wait_for_published();  // work enqueued on compute from now on sees what was published

  // Blocks until the disk was read and written, and throws its faults. After the last pass.
  void synchronize_disk() { disk_.synchronize(); }
  // What collectives read and write.
  std::vector<Tensor> buffers() const;

 private:
  struct Unit {
    const StoredUnit* of;
    Buffer weights = {};  // the shard, at home; undefined on disk
    int on_disk = -1;     // there: which of the shards
  };
  struct Pass {
    std::vector<Visit> visits;
    Stays gathers = {};
    std::vector<Event> ready = {};  // by gather: it is there
  };
  void lay_out(Pass& pass) const;
  Tensor place_of(const Stay& stay) const;
  Event gather(const Stay& stay);

  Memory& memory_;
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::vector<Unit> units_;
  std::vector<Pass> passes_;
  Buffer gathered_;
  Pass* pass_ = nullptr;
  Event released_;  // compute is done with every visit finished so far
  Trace* trace_ = nullptr;
  DiskShards disk_;  // goes first: it finishes what was enqueued
};

}  // namespace cleave::zero
