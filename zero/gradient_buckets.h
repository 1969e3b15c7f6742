// Whole gradients in buckets while visits write them, for visits that come in an order which is fixed before
// training (a pass). A bucket lives from the first visit that writes it until its reduction, which may run
// behind the backward; which ones exist at the same time is known, so their memory is planned once.
#pragma once
#include <utility>

#include "zero/gradient_shards.h"
#include "zero/gradient_user.h"
#include "zero/stays.h"

namespace cleave::zero {

class GradientBuckets {
 public:
  // compute and comm are the shards'.
  GradientBuckets(Memory& memory, const StoreOptions& options, GradientShards& shards, Stream& compute,
                  Stream& comm);

  // Set-up, after every unit was added to the shards: every pass, which is known by the number that is
  // returned; commit, of the shards as well.
  int add_pass(std::vector<Visit> visits);
  void commit();

  // A step is begin_step, then passes in any order, each begin_pass and its visits in order, each [slots]
  // finish, and at the end end_step. `last`: no later pass of this step writes gradients of these units; each
  // unit's are written in one kind of pass only. user: is told of gradients until end_step; null: nobody is.
  void begin_step(GradientUser* user);
  void begin_pass(int pass, bool last);
  std::vector<GradientSlot> slots(int visit);  // a slot for every parameter of the visit's units
  void finish(int visit);
  void end_step();  // compute has seen all reductions: tells the user of the rest

 private:
  struct Pass {
    std::vector<Visit> visits;
    Stays buckets = {};
    std::vector<int> last_backward = {};  // by unit: the visit after which its gradient is complete, or -1
    std::vector<int> completes = {};      // units in the order of those visits
  };
  void lay_out(Pass& pass) const;
  GradientShards::WholeGradient whole(int visit, int unit) const;
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
  Buffer apart_;  // what the layer of one visit writes, for a form that asks for it
  int64_t apart_numel_ = 0;
  Pass* pass_ = nullptr;
  std::vector<Event> reduced_;  // by visit of the current pass: its reductions are done
  bool last_ = true;            // nothing is added to this pass's gradients after it
  GradientUser* user_ = nullptr;
  std::vector<std::pair<int, Event>> complete_;  // units that the user was not told of yet
};

}  // namespace cleave::zero
