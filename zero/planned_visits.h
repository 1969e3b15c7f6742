// The driver of a ParameterStore for layers that are visited in an order which is fixed before training (a
// pass). So the memory of gathered units and gradient buckets is planned once, gathers run ahead of their
// use, and reductions run behind the backward, with events only.
#pragma once
#include "zero/gather_pool.h"
#include "zero/gradient_buckets.h"
#include "zero/parameter_store.h"
#include "zero/visits.h"

namespace cleave::zero {

class PlannedVisits : public Visits {
 public:
  // The store outlives this; compute and comm are its streams.
  PlannedVisits(Memory& memory, ParameterStore& store, Stream& compute, Stream& comm);

  // Set-up, after every unit was added to the store: every pass, which is known by the number that is
  // returned; commit.
  int add_pass(std::vector<Visit> visits);
  void commit() override;

  // In a step passes come in any order, each begin_pass and its visits in order, each acquire [gradients]
  // finish. `last`: no later pass of this step writes gradients of these units; each unit's gradients are
  // written in one kind of pass only. A pass without backward visits may stand alone.
  void begin_step(double unscale = 1, GradientUser* user = nullptr) override;
  void begin_pass(int pass, bool last);
  // The parameters of the visit's units, if it needs them, for work enqueued on compute until finish(visit).
  std::vector<Tensor> acquire(int visit) { return pool_.acquire(visit); }
  // The gradients of the same units; those of frozen ones are empty.
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
