// Gradients from the layers' hands to the slices that the optimizer reads: whole gradients in buckets while
// visits write them, their sums over each unit's ranks, and the shards of these in their home.
//
// A bucket lives from the first visit that writes it until its reduction, which may run behind the backward;
// which ones exist at the same time is known before training, so their memory is planned once.
#pragma once
#include <memory>
#include <utility>

#include "device/memory.h"
#include "device/trace.h"
#include "offload/home_stream.h"
#include "zero/gradient_user.h"
#include "zero/stays.h"
#include "zero/store_options.h"
#include "zero/stored_unit.h"

namespace cleave::zero {

// A gradient that a layer adds to; `written` says whether it holds something yet, so nothing has to be zeroed
// first. Both are empty where the unit is frozen.
struct GradientSlot {
  Tensor tensor;
  bool* written = nullptr;
};

class GradientBuckets {
 public:
  // compute and comm may be the same stream. All collectives run on comm.
  GradientBuckets(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);

  // Set-up, in this order: every unit, which stays where it is and outlives this; every pass, which is known
  // by the number that is returned; commit. Units may be summed over different ranks; the home of their
  // gradients is the same.
  void add_unit(const StoredUnit& unit);
  int add_pass(std::vector<Visit> visits);
  void commit();
  void show_in(Trace& trace);  // what goes to homes; the trace outlives this

  // A step is begin_step, then passes in any order, each begin_pass and its visits in order, each [slots]
  // finish, and at the end wait. `last`: no later pass of this step writes gradients of these units; each
  // unit's are written in one kind of pass only. unscale: what exact sums multiply a contribution by before
  // it is rounded. user: is told of gradients until wait; null: nobody is.
  void begin_step(double unscale, GradientUser* user);
  void begin_pass(int pass, bool last);
  std::vector<GradientSlot> slots(int visit);  // a slot for every parameter of the visit's units
  void finish(int visit);
  void wait();  // work enqueued on compute from now on sees the reduced gradients

  Tensor slice(int unit) const;                    // at home; empty where the unit is frozen
  Tensor overflows() const { return overflows_; }  // exact sums: int64 [1], not 0 when one was seen
  // What collectives read and write.
  std::vector<Tensor> buffers() const;

 private:
  struct Unit {
    const StoredUnit* of;
    Buffer gradients = {};                 // numel / gradient_shards, at home
    std::unique_ptr<bool[]> written = {};  // by parameter, of the full gradient being written
    bool reduced = false;                  // the gradient shard holds a sum of this step
    bool begun = false;  // exact sums without buckets: the gradients hold something of this step

    bool trains() const { return !of->layout.frozen(); }
    // A rank alone adds micro-batch after micro-batch to one gradient, which comes back to the bucket for it.
    bool continues() const { return reduced && of->sharding.reduce_each_micro->size() == 1; }
  };
  struct Pass {
    std::vector<Visit> visits;
    Stays buckets = {};
    std::vector<int> last_backward = {};  // by unit: the visit after which its gradient is complete, or -1
    std::vector<int> completes = {};      // units in the order of those visits
  };
  void lay_out(Pass& pass) const;
  DType bucket_type(const Unit& unit) const;
  MemoryKind home() const;
  Tensor place_of(const Stay& bucket) const;
  Tensor contribution(int visit, int unit) const;
  void round_contributions(int visit);
  void clear_unwritten(Unit& unit, Tensor full);
  void reduce(Unit& unit, const Stay* bucket);
  void reduce_bucket(Unit& unit, const Stay& bucket);
  void reduce_shard(Unit& unit);
  void hand_over();

  Memory& memory_;
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::vector<Unit> units_;
  std::vector<Pass> passes_;
  Buffer buckets_, wire_;
  Buffer landing_;                    // where kernels do not reach the gradients' home: on the way to it
  Buffer contributions_, overflows_;  // exact sums: what the layer of one visit writes
  int64_t contribution_numel_ = 0;
  double to_grid_ = 1;
  Pass* pass_ = nullptr;
  std::vector<Event> reduced_;  // by visit of the current pass: its reductions are done
  bool last_ = true;            // nothing is added to this pass's gradients after it
  GradientUser* user_ = nullptr;
  std::vector<std::pair<int, Event>> complete_;  // units that the user was not told of yet
  Trace* trace_ = nullptr;
  offload::HomeStream homes_;  // goes first: it finishes what was enqueued
};

}  // namespace cleave::zero
