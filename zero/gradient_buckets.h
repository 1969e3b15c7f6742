// Buckets for whole gradients when the order of visits (a pass) is fixed before training. A bucket lives from
// the first visit that writes it until its reduction, which may overlap the backward pass. Lifetimes are
// known, so the memory is planned once.
#pragma once
#include <utility>

#include "zero/gradient_shards.h"
#include "zero/gradient_user.h"
#include "zero/stays.h"

namespace cleave::zero {

class GradientBuckets {
 public:
  // compute and comm are the streams of `shards`.
  GradientBuckets(Memory& memory, const StoreOptions& options, GradientShards& shards, Stream& compute,
                  Stream& comm);

  // Set-up after all units were added to the shards: add_pass returns the index of the pass; commit also
  // commits the shards.
  int add_pass(std::vector<Visit> visits);
  void commit();

  // A step is begin_step, passes in any order, and end_step; a pass is begin_pass, then [slots] and finish
  // for each visit in order. `last`: no later pass of this step writes gradients of these units. Only one
  // kind of pass may write the gradients of a unit. `user` is notified of complete gradients until end_step;
  // may be null.
  void begin_step(GradientUser* user);
  void begin_pass(int pass, bool last);
  std::vector<GradientSlot> slots(int visit);  // one slot per parameter of the visit's units
  void finish(int visit);
  void end_step();  // call after compute waits for all reductions: notifies the user of the remaining units

 private:
  struct Pass {
    std::vector<Visit> visits;
    Stays buckets = {};
    std::vector<int> last_backward = {};  // by unit: the visit that completes its gradient, or -1
    std::vector<int> completes = {};      // units in the order of those visits
  };
  void lay_out(Pass& pass) const;
  GradientShards::WholeGradient whole(int visit, int unit) const;
  void bring_back(int visit);
  Tensor bucket(const Stay& stay) const;
  Tensor apart(int visit, int unit) const;
  void hand_over();

  Memory& memory_;
  StoreOptions options_;
  GradientShards& shards_;
  Stream& compute_;
  Stream& comm_;
  std::vector<Pass> passes_;
  Buffer buckets_;
  Buffer apart_;  // output of one visit's layer, for forms that need it
  int64_t apart_numel_ = 0;
  Pass* pass_ = nullptr;
  std::vector<Event> reduced_;  // by visit of the current pass: its reductions are done
  std::vector<Event> back_;  // by visit of the current pass: gradients of earlier passes are in their buckets
  bool last_ = true;         // no later pass adds to the gradients of this pass
  GradientUser* user_ = nullptr;
  std::vector<std::pair<int, Event>> complete_;  // units not yet reported to the user
};

}  // namespace cleave::zero
