// Whole parameters on the device for visits that come in an order which is fixed before training (a pass). So
// the memory of gathered units is planned once, and gathers run ahead of their use, with events only.
#pragma once
#include "zero/stays.h"
#include "zero/weight_shards.h"

namespace cleave::zero {

class GatherPool {
 public:
  GatherPool(Memory& memory, const StoreOptions& options, WeightShards& shards, Stream& compute);

  // Set-up, after every unit was added to the shards: every pass, which is known by the number that is
  // returned; commit.
  int add_pass(std::vector<Visit> visits);
  void commit();

  // A pass is begin_pass and its visits in order, each acquire and finish. The parameters of the visit's
  // units, if it needs them, are for work enqueued on compute before finish.
  void begin_pass(int pass);
  std::vector<Tensor> acquire(int visit);
  void finish() { released_ = compute_.record(); }

 private:
  struct Pass {
    std::vector<Visit> visits;
    Stays gathers = {};
    std::vector<Event> ready = {};  // by gather: it is there
  };
  void lay_out(Pass& pass) const;
  Tensor memory_of(const Stay& stay) const;

  Memory& memory_;
  StoreOptions options_;
  WeightShards& shards_;
  Stream& compute_;
  std::vector<Pass> passes_;
  Buffer gathered_;
  Pass* pass_ = nullptr;
  Event released_;  // compute is done with every visit finished so far
};

}  // namespace cleave::zero
