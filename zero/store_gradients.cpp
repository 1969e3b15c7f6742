// Gradients of a ParameterStore: from the layers' hands, through buckets, to their home.
#include <algorithm>
#include <utility>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/exact.h"
#include "zero/store_parts.h"

namespace cleave {

std::vector<GradientSlot> ParameterStore::gradients(int visit) {
  // Buckets whose place this visit may reuse were reduced at least two visits ago (one, without overlap).
  compute_.wait(reduced_[size_t(std::max(0, visit - (options_.overlap ? 1 : 0)))]);
  std::vector<GradientSlot> slots;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    if (!unit.trains()) {
      slots.resize(slots.size() + size_t(unit.layout.params()));
      continue;
    }
    Tensor full = unit.gradients;
    if (const Instance* i = pass_->bucket_of(u, visit)) {
      full = place_of(*i, buckets_);
      if (visit == i->first_use && unit.continues())
        copy(full, unit.gradients, compute_);
      else if (visit == i->first_use)
        std::fill_n(unit.written.get(), unit.layout.params(), false);
    }
    if (options_.exact()) {
      full = contribution(visit, u);
      std::fill_n(unit.written.get(), unit.layout.params(), false);
    }
    for (int p = 0; p < unit.layout.params(); ++p)
      slots.push_back({view_of(unit.layout, p, full), &unit.written[size_t(p)]});
  }
  return slots;
}

Tensor ParameterStore::contribution(int visit, int unit) const {
  int64_t at = 0;
  for (int u : pass_->visits[size_t(visit)].units) {
    if (layout(u).frozen()) continue;
    const int64_t numel = layout(u).numel();
    if (u == unit) return contributions_.tensor().slice({at, at + numel});
    at += round_up(numel, 64);
  }
  fail(Exit::internal, "unit {} is not in visit {}", unit, visit);
}

void ParameterStore::round_contributions(int visit) {
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    if (!unit.trains()) continue;
    const Tensor full = contribution(visit, u);
    clear_unwritten(unit, full);
    const Instance* bucket = pass_->bucket_of(u, visit);
    const bool holds_something =
        bucket ? visit != bucket->first_use || unit.continues() : std::exchange(unit.begun, true);
    launch(RoundToGrid{.y = bucket ? place_of(*bucket, buckets_) : unit.gradients.tensor(),
                       .bad = overflows_,
                       .x = full,
                       .factor = to_grid_,
                       .limit = options_.limit,
                       .accumulate = holds_something},
           compute_);
  }
}

void ParameterStore::finish(int visit) {
  if (options_.exact() && pass_->visits[size_t(visit)].backward) round_contributions(visit);
  released_ = compute_.record();
  // reduced_[v + 1]: everything reduced up to and including visit v.
  reduced_[size_t(visit) + 1] = reduced_[size_t(visit)];
  if (!pass_->visits[size_t(visit)].backward) return;
  bool any = false;
  for (int u : pass_->visits[size_t(visit)].units) {
    if (pass_->last_backward[size_t(u)] != visit) continue;
    const Instance* bucket = pass_->bucket_of(u, visit);
    if (!bucket && !last_) continue;
    reduce(u, bucket);
    any = true;
  }
  if (any) reduced_[size_t(visit) + 1] = comm_.record();
  if (!user_ || !last_) return;
  if (options_.overlap) hand_over();  // those of visits before this one, whose reductions ran behind it
  for (int u : pass_->visits[size_t(visit)].units)
    if (pass_->last_backward[size_t(u)] == visit) complete_.emplace_back(u, reduced_[size_t(visit) + 1]);
  if (!options_.overlap) hand_over();
}

void ParameterStore::hand_over() {
  for (const auto& [unit, reduced] : std::exchange(complete_, {})) {
    compute_.wait(reduced);
    user_->complete(unit);
  }
}

// Parameters that no layer wrote, and the padding, have gradient zero.
void ParameterStore::clear_unwritten(Unit& unit, Tensor full) {
  for (int p = 0; p < unit.layout.params(); ++p)
    if (!unit.written[size_t(p)]) launch(Fill{.y = full.slice(unit.layout.range(p))}, compute_);
  if (unit.layout.used_numel() < unit.layout.numel())
    launch(Fill{.y = full.slice({unit.layout.used_numel(), unit.layout.numel()})}, compute_);
}

void ParameterStore::reduce(int index, const Instance* bucket) {
  Unit& unit = *units_[size_t(index)];
  if (!options_.exact()) clear_unwritten(unit, bucket ? place_of(*bucket, buckets_) : unit.gradients);
  comm_.wait(compute_.record());
  if (bucket) reduce_bucket(unit, *bucket);
  if (last_) reduce_shard(unit);
}

// The sum over the ranks of a bucket goes to its home: it is written there, or added to what is there.
void ParameterStore::reduce_bucket(Unit& unit, const Instance& bucket) {
  Communicator& ranks = *unit.plan.reduce_each_micro;
  const Call call{.what = unit.layout.name(), .max_numel = options_.reduce_numel};
  const Tensor full = place_of(bucket, buckets_), sum = unit.gradients;
  const bool adds = unit.reduced && !unit.continues();
  unit.reduced = true;
  Trace* const trace = unit.plan.home.gradients == MemoryKind::device ? nullptr : trace_;
  if (!adds && full.dtype() == sum.dtype() && homes_.reaches(sum.memory())) {
    const TraceSpan seen(trace, comm_, "gradient", unit.layout.name());
    return ranks.reduce_scatter(sum, full, comm_, call);
  }
  Tensor shard = full.slice(Range{0, sum.numel()}.shifted(ranks.rank() * sum.numel()));
  ranks.reduce_scatter(shard, full, comm_, call);
  const TraceSpan seen(trace, comm_, "gradient", unit.layout.name());
  if (!adds && shard.dtype() == sum.dtype()) return copy(sum, shard, comm_);
  if (landing_.tensor().numel() > 0) {
    const Tensor near_home = landing_.tensor().slice({0, sum.numel()});
    copy(near_home, shard, comm_);
    shard = near_home;
  }
  homes_.run(sum.memory(), comm_, [&](Stream& stream) {
    if (!adds)
      launch(Cast{.y = sum, .x = shard}, stream);
    else if (options_.exact())
      launch(AddIntegers{.y = sum, .x = shard}, stream);
    else
      launch(Axpy{.y = sum, .x = shard}, stream);
  });
}

// What is left of the sum over the data ranks, once a step.
void ParameterStore::reduce_shard(Unit& unit) {
  const ZeroPlan& plan = unit.plan;
  if (plan.reduce_each_step->size() == 1 && plan.reduce_replicas->size() == 1) return;
  const Call call{.what = unit.layout.name(), .max_numel = options_.reduce_numel};
  const Tensor sum = unit.gradients;
  const bool casts = options_.wire != options_.gradients;
  Tensor full = sum;
  auto cast = [&](Tensor y, Tensor x) {
    homes_.run(sum.memory(), comm_, [&](Stream& stream) { launch(Cast{.y = y, .x = x}, stream); });
  };
  if (casts) cast(full = wire_.tensor().slice({0, sum.numel()}), sum);
  const int64_t shard = div_exact(full.numel(), plan.reduce_each_step->size());
  const Range mine = Range{0, shard}.shifted(plan.reduce_each_step->rank() * shard);
  plan.reduce_each_step->reduce_scatter(full.slice(mine), full, comm_, call);
  plan.reduce_replicas->all_reduce(full.slice(mine), comm_, call);
  if (casts) cast(sum.slice(mine), full.slice(mine));
}

void ParameterStore::wait_for_gradients() {
  synchronize_disk();  // what was written long ago and read by now: its faults end this step
  compute_.wait(comm_.record());
  hand_over();
  user_ = nullptr;
  disk_.end_step();
}

}  // namespace cleave
