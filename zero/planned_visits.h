// Driver of a ParameterStore when the order of layer visits (a pass) is fixed before training. The memory of
// gathered units and gradient buckets is planned once, gathers run ahead of their use, and reductions overlap
// the backward pass, synchronized by events only.
#pragma once
#include "zero/gather_pool.h"
#include "zero/gradient_buckets.h"
#include "zero/parameter_store.h"
#include "zero/visits.h"

namespace cleave::zero {

class PlannedVisits : public Visits {
 public:
  // The store must outlive this object; compute and comm are its streams.
  PlannedVisits(Memory& memory, ParameterStore& store, Stream& compute, Stream& comm);

  // Set-up after all units were added to the store: add_pass returns the index of the pass; then commit.
  int add_pass(std::vector<Visit> visits);
  void commit() override;

  // A step contains passes in any order: begin_pass, then acquire, [gradients] and finish for each visit in
  // order. `last`: no later pass of this step writes gradients of these units. Only one kind of pass may
  // write the gradients of a unit. A pass without backward visits may run outside a step.
  void begin_step(double unscale = 1, GradientUser* user = nullptr) override;
  void begin_pass(int pass, bool last);
  // Returns the parameters of the visit's units, if it needs them, for work enqueued on compute until
  // finish(visit).
  std::vector<Tensor> acquire(int visit) { return pool_.acquire(visit); }
  // Returns the gradient slots of the same units; empty slots for frozen ones.
  std::vector<GradientSlot> gradients(int visit) { return buckets_.slots(visit); }
  void finish(int visit);
  void end_step() override;

  ParameterStore& store() { return store_; }

 private:
  ParameterStore& store_;
  GatherPool pool_;
  GradientBuckets buckets_;
};

}  // namespace cleave::zero
