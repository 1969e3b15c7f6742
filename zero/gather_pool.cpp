#include "zero/gather_pool.h"

#include <algorithm>

namespace cleave::zero {

GatherPool::GatherPool(Memory& memory, const StoreOptions& options, WeightShards& shards, Stream& compute)
    : memory_(memory), options_(options), shards_(shards), compute_(compute) {}

int GatherPool::add_pass(std::vector<Visit> visits) {
  Pass& pass = passes_.emplace_back(Pass{.visits = std::move(visits)});
  lay_out(pass);
  pass.ready.resize(pass.gathers.all().size());
  // In the order of acquire(): a small unit may be fetched before a large one with an earlier use.
  std::vector<Stay> order = pass.gathers.all();
  std::stable_sort(order.begin(), order.end(),
                   [](const Stay& a, const Stay& b) { return a.lifetime.first < b.lifetime.first; });
  std::vector<int> fetched;
  for (const Stay& s : order) fetched.push_back(s.unit);
  return shards_.add_pass(fetched);
}

// Gathers a unit once for neighboring visits (the last layer's forward and backward).
void GatherPool::lay_out(Pass& pass) const {
  for (int v = 0; v < int(pass.visits.size()); ++v) {
    if (!pass.visits[size_t(v)].parameters) continue;
    for (int u : pass.visits[size_t(v)].units) {
      const StoredUnit& unit = shards_.unit(u);
      if (!unit.sharding.gathers()) continue;
      if (Stay* before = v > 0 ? pass.gathers.find(u, v - 1) : nullptr) {
        before->last_use = before->lifetime.last = v;
        continue;
      }
      int first = std::max(0, v - options_.prefetch_visits);
      while (first < v && pass.gathers.numel_at(first) + unit.layout.numel() > options_.live_numel) ++first;
      pass.gathers.add({u, v, v, {first, v, unit.layout.numel()}});
    }
  }
  pass.gathers.lay_out();
}

void GatherPool::commit() {
  int64_t gathered = 0;
  for (const Pass& pass : passes_) gathered = std::max(gathered, pass.gathers.numel());
  gathered_ = memory_.allocate(MemoryKind::device, Category::gathered, options_.weights, {gathered},
                               "gathered layers");
}

void GatherPool::begin_pass(int pass) {
  pass_ = &passes_[size_t(pass)];
  shards_.begin_pass(pass);
}

Tensor GatherPool::memory_of(const Stay& s) const {
  return gathered_.tensor().slice({s.offset, s.offset + shards_.unit(s.unit).layout.numel()});
}

std::vector<Tensor> GatherPool::acquire(int visit) {
  const std::vector<Stay>& gathers = pass_->gathers.all();
  // The memory was used by visits that ended before this one began; prefetched units are still computing
  // elsewhere.
  for (size_t i = 0; i < gathers.size(); ++i)
    if (gathers[i].lifetime.first == visit)
      pass_->ready[i] = shards_.fetch(gathers[i].unit, memory_of(gathers[i]), released_);
  std::vector<Tensor> params;
  if (!pass_->visits[size_t(visit)].parameters) return params;
  for (int u : pass_->visits[size_t(visit)].units) {
    Tensor whole = shards_.shard(u);
    if (const Stay* s = pass_->gathers.find(u, visit)) {
      compute_.wait(pass_->ready[size_t(s - gathers.data())]);
      whole = memory_of(*s);
    }
    shards_.add_views(u, whole, params);
  }
  return params;
}

}  // namespace cleave::zero
