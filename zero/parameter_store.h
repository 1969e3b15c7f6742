// Owns the weights and gradients of the local layers, one unit a layer. Layers borrow views for the duration
// of a call; only the store knows what is sharded, where it lives and when it travels. It contains no stage
// and no offload, only the communicators and homes of each unit's plan.
//
// Layers are visited in an order that is fixed before training (a pass). So the memory of gathered units and
// gradient buckets is planned once, gathers run ahead of their use, and reductions run behind the backward,
// with events only.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "device/memory.h"
#include "offload/home_stream.h"
#include "zero/disk_shards.h"
#include "zero/flat_layout.h"
#include "zero/gradient_user.h"
#include "zero/plan.h"
#include "zero/region_plan.h"
#include "zero/store_options.h"

namespace cleave {

// A gradient that a layer adds to; `written` says whether it holds something yet, so nothing has to be zeroed
// first.
struct GradientSlot {
  Tensor tensor;
  bool* written = nullptr;
};

class ParameterStore {
 public:
  // One stop of a pass: which units, whether their gradients are written, and whether their parameters are
  // needed (a split backward's second part needs none).
  struct Visit {
    std::vector<int> units;
    bool backward = false;
    bool parameters = true;
  };

  // compute and comm may be the same stream. All collectives run on comm.
  ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm);
  ~ParameterStore();

  // Set-up, in this order: every unit, every pass, commit.
  int add_unit(UnitSpec spec, const ZeroPlan& plan);
  int add_pass(std::vector<Visit> visits);
  void commit();
  void show_in(Trace& trace);  // what goes to homes and comes from them; the trace outlives the store

  int units() const;
  const FlatLayout& layout(int unit) const;

  // A training step is begin_step, then passes in any order, each begin_pass and its visits in order, each
  // acquire [gradients] finish. `last`: no later pass of this step writes gradients of these units; each
  // unit's gradients are written in one kind of pass only. A pass without backward visits may stand alone.
  // unscale: what exact sums multiply a contribution by before it is rounded. user: is told of gradients
  // until wait_for_gradients; none: nobody is.
  void begin_step(double unscale = 1, GradientUser* user = nullptr);
  void begin_pass(int pass, bool last);
  // The parameters of the visit's units, if it needs them, for work enqueued on compute until finish(visit).
  std::vector<Tensor> acquire(int visit);
  // Of the same units; those of frozen ones are empty.
  std::vector<GradientSlot> gradients(int visit);
  void finish(int visit);

  // After the last pass of a step: work enqueued on compute from now on sees the reduced gradients.
  void wait_for_gradients();
  // What the optimizer walks: this rank's slice of the unit's flat order, and the views on it, at home.
  Range slice(int unit) const;
  // On disk: nothing but its type, size and home.
  Tensor weights_slice(int unit) const;
  // With the values of the last step wherever they live, to be read before the next call. Blocks for the
  // disk.
  Tensor settled_weights_slice(int unit);
  // The same, for work enqueued on compute until publish(unit) that writes all of it.
  Tensor next_weights_slice(int unit);
  Tensor gradient_slice(int unit) const;           // empty where the unit is frozen
  Tensor overflows() const { return overflows_; }  // exact sums: int64 [1], not 0 when one was seen
  const StoreOptions& options() const { return options_; }
  // The part of the slice that this rank counts in the gradient norm, relative to the slice's begin.
  Range norm_range(int unit) const;
  // After the slice of the working copy was updated, on compute and by the work before `updated`: brings it
  // to the ranks that hold the whole, and home.
  void publish(int unit, const Event& updated = {});
  // What collectives read and write, where it lives in device memory.
  std::vector<Tensor> device_buffers() const;
  void wait_for_weights();  // work enqueued on compute from now on sees what was published

  // Blocks until the disk was read and written, and throws its faults. After the last pass.
  void synchronize_disk() { disk_.synchronize(); }
  // Adds up partial sums, fp64 or int64, over the ranks that hold other slices, in rank order; `replicas`:
  // and over those that hold the same. On the comm stream.
  void sum_over_slices(Tensor partial_sums, std::string_view what, bool replicas);

 private:
  struct Unit;
  struct Instance;
  struct Pass;
  void plan_gathers(Pass& pass);
  void plan_buckets(Pass& pass);
  MemoryKind gradient_home() const;
  DType bucket_type() const;
  void gather(Instance& instance);
  Tensor place_of(const Instance& instance, const Buffer& block) const;
  void reduce(int unit, const Instance* bucket);
  void reduce_bucket(Unit& unit, const Instance& bucket);
  void reduce_shard(Unit& unit);
  void round_contributions(int visit);
  Tensor contribution(int visit, int unit) const;
  void clear_unwritten(Unit& unit, Tensor full);
  void hand_over();

  Memory& memory_;
  StoreOptions options_;
  Stream& compute_;
  Stream& comm_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Pass>> passes_;
  Buffer gathered_, buckets_, wire_;
  Buffer landing_;                    // where kernels do not reach the gradients' home: on the way to it
  Buffer contributions_, overflows_;  // exact sums: what the layer of one visit writes
  int64_t contribution_numel_ = 0;
  double to_grid_ = 1;
  Pass* pass_ = nullptr;
  Event released_;              // compute is done with every visit finished so far
  std::vector<Event> reduced_;  // by visit of the current pass: its reductions are done
  bool last_ = true;            // nothing is added to this pass's gradients after it
  GradientUser* user_ = nullptr;
  std::vector<std::pair<int, Event>> complete_;  // units that the user was not told of yet
  HomeStream homes_;
  DiskShards disk_;
  Trace* trace_ = nullptr;
};

}  // namespace cleave
