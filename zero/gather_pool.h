// Device memory for gathered parameters when the order of visits (a pass) is fixed before training. The
// memory is planned once, and gathers run ahead of their use, synchronized by events only.
#pragma once
#include "zero/stays.h"
#include "zero/weight_shards.h"

namespace cleave::zero {

class GatherPool {
 public:
  GatherPool(Memory& memory, const StoreOptions& options, WeightShards& shards, Stream& compute);

  // Set-up after all units were added to the shards: add_pass returns the index of the pass; then commit.
  int add_pass(std::vector<Visit> visits);
  void commit();

  // A pass is begin_pass, then acquire and finish for each visit in order. acquire returns the parameters of
  // the visit's units, if the visit needs them, for work enqueued on compute before finish.
  void begin_pass(int pass);
  std::vector<Tensor> acquire(int visit);
  void finish() { released_ = compute_.record(); }

 private:
  struct Pass {
    std::vector<Visit> visits;
    Stays gathers = {};
    std::vector<Event> ready = {};  // by gather: the gathered unit is ready
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
  Event released_;  // compute has finished all visits that were finished so far
};

}  // namespace cleave::zero
