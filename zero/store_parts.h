// What a ParameterStore is made of; shared by the files that implement it.
#pragma once
#include "zero/parameter_store.h"

namespace cleave {

inline Tensor view_of(const FlatLayout& layout, int param, Tensor full) {
  Shape shape;
  for (int64_t d : layout.param(param).shape) shape.dims[size_t(shape.rank++)] = d;
  return full.slice(layout.range(param)).view(shape);
}

struct ParameterStore::Unit {
  FlatLayout layout;
  ZeroPlan plan;
  Buffer weights = {};                   // numel / parameter_shards, at home; undefined on disk
  int on_disk = -1;                      // there: which of the shards
  Buffer gradients = {};                 // numel / gradient_shards, at home
  std::unique_ptr<bool[]> written = {};  // by parameter, of the full gradient being written
  bool reduced = false;                  // the gradient shard holds a sum of this step
  bool begun = false;  // exact sums without buckets: the gradients hold something of this step

  bool trains() const { return !layout.frozen(); }
  // A rank alone adds micro-batch after micro-batch to one gradient, which comes back to the bucket for it.
  bool continues() const { return reduced && plan.reduce_each_micro->size() == 1; }
  int64_t shard_numel() const { return layout.numel() / plan.parameter_shards(); }
  int64_t slice_numel() const { return layout.numel() / plan.optimizer_shards(); }
};

// One stay of a unit in the block of gathered parameters, or of gradient buckets.
struct ParameterStore::Instance {
  int unit = 0;
  Lifetime lifetime;
  int first_use = 0, last_use = 0;
  int64_t offset = 0;
  Event ready;
};

struct ParameterStore::Pass {
  std::vector<Visit> visits;
  std::vector<Instance> gathers, buckets;
  std::vector<int>
      last_backward;           // by unit that trains: the visit after which its gradient is complete; or -1
  std::vector<int> completes;  // units in the order of those visits
  int64_t gathered_numel = 0, bucket_numel = 0;

  int64_t gathered_at(int visit) const {
    int64_t numel = 0;
    for (const Instance& i : gathers)
      if (i.lifetime.first <= visit && visit <= i.lifetime.last) numel += i.lifetime.numel;
    return numel;
  }
  Instance* gather_of(int unit, int visit) { return find(gathers, unit, visit); }
  Instance* bucket_of(int unit, int visit) { return find(buckets, unit, visit); }

 private:
  static Instance* find(std::vector<Instance>& list, int unit, int visit) {
    for (Instance& i : list)
      if (i.unit == unit && i.first_use <= visit && visit <= i.last_use) return &i;
    return nullptr;
  }
};

}  // namespace cleave
