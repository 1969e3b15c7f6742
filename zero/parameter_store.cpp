#include "zero/parameter_store.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/exact.h"
#include "zero/store_parts.h"

namespace cleave {
namespace {

Tensor view_of(const FlatLayout& layout, int param, Tensor full) {
  Shape shape;
  for (int64_t d : layout.param(param).shape) shape.dims[size_t(shape.rank++)] = d;
  return full.slice(layout.range(param)).view(shape);
}

}  // namespace

ParameterStore::ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory), options_(options), compute_(compute), comm_(comm) {}
ParameterStore::~ParameterStore() = default;

int ParameterStore::units() const { return int(units_.size()); }
const FlatLayout& ParameterStore::layout(int unit) const { return units_[size_t(unit)]->layout; }

void ParameterStore::begin_step(double unscale) {
  if (options_.exact()) launch(Fill{.y = overflows_}, compute_);
  to_grid_ = std::ldexp(unscale, options_.grid);
  for (auto& unit : units_) {
    unit->reduced = unit->begun = false;
    std::fill_n(unit->written.get(), unit->layout.params(), false);
  }
}

void ParameterStore::begin_pass(int pass, bool last) {
  pass_ = passes_[size_t(pass)].get();
  last_ = last;
  // The buckets of the pass before are free once its last reductions are done.
  const Event before = reduced_.empty() ? Event() : reduced_.back();
  reduced_.assign(pass_->visits.size() + 1, Event());
  reduced_[0] = before;
}

std::vector<Tensor> ParameterStore::acquire(int visit) {
  for (Instance& i : pass_->gathers) {
    if (i.lifetime.first != visit) continue;
    Unit& unit = *units_[size_t(i.unit)];
    // The place was used by visits that ended before this one began; prefetched ones are still computing
    // elsewhere.
    comm_.wait(released_);
    const Tensor full = gathered_.tensor().slice({i.offset, i.offset + unit.layout.numel()});
    unit.plan.gather_on_use->all_gather(full, unit.weights, comm_,
                                        {.what = unit.layout.name(), .max_numel = options_.gather_numel});
    i.ready = comm_.record();
  }
  std::vector<Tensor> params;
  if (!pass_->visits[size_t(visit)].parameters) return params;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    Tensor full = unit.weights;
    if (Instance* i = unit.gathers() ? pass_->gather_of(u, visit) : nullptr) {
      compute_.wait(i->ready);
      full = gathered_.tensor().slice({i->offset, i->offset + unit.layout.numel()});
    }
    for (int p = 0; p < unit.layout.params(); ++p) params.push_back(view_of(unit.layout, p, full));
  }
  return params;
}

std::vector<GradientSlot> ParameterStore::gradients(int visit) {
  // Buckets whose place this visit may reuse were reduced at least two visits ago (one, without overlap).
  compute_.wait(reduced_[size_t(std::max(0, visit - (options_.overlap ? 1 : 0)))]);
  std::vector<GradientSlot> slots;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    Tensor full = unit.gradients;
    if (options_.exact()) {
      full = contribution(visit, u);
      std::fill_n(unit.written.get(), unit.layout.params(), false);
    } else if (Instance* i = unit.buckets() ? pass_->bucket_of(u, visit) : nullptr) {
      full = buckets_.tensor().slice({i->offset, i->offset + unit.layout.numel()});
      if (visit == i->first_use) std::fill_n(unit.written.get(), unit.layout.params(), false);
    }
    for (int p = 0; p < unit.layout.params(); ++p)
      slots.push_back({view_of(unit.layout, p, full), &unit.written[size_t(p)]});
  }
  return slots;
}

Tensor ParameterStore::contribution(int visit, int unit) const {
  int64_t at = 0;
  for (int u : pass_->visits[size_t(visit)].units) {
    const int64_t numel = layout(u).numel();
    if (u == unit) return contributions_.tensor().slice({at, at + numel});
    at += round_up(numel, 64);
  }
  fail(Exit::internal, "unit {} is not in visit {}", unit, visit);
}

void ParameterStore::round_contributions(int visit) {
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    const Tensor full = contribution(visit, u);
    clear_unwritten(unit, full);
    const Instance* bucket = unit.buckets() ? pass_->bucket_of(u, visit) : nullptr;
    const Tensor sum = bucket
                           ? buckets_.tensor().slice({bucket->offset, bucket->offset + unit.layout.numel()})
                           : unit.gradients.tensor();
    launch(RoundToGrid{.y = sum,
                       .bad = overflows_,
                       .x = full,
                       .factor = to_grid_,
                       .limit = options_.limit,
                       .accumulate = bucket ? visit != bucket->first_use : std::exchange(unit.begun, true)},
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
    const Instance* bucket = units_[size_t(u)]->buckets() ? pass_->bucket_of(u, visit) : nullptr;
    if (!bucket && !last_) continue;
    reduce(u, bucket);
    any = true;
  }
  if (any) reduced_[size_t(visit) + 1] = comm_.record();
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
  const Call call{.what = unit.layout.name(), .max_numel = options_.reduce_numel};
  if (bucket) {
    const Tensor full = buckets_.tensor().slice({bucket->offset, bucket->offset + unit.layout.numel()});
    if (!options_.exact()) clear_unwritten(unit, full);
    comm_.wait(compute_.record());
    const Tensor sum = unit.gradients;
    const bool direct = !unit.reduced && options_.wire == options_.gradients;
    const Tensor shard = direct ? sum : reduced_shard_.tensor().slice({0, sum.numel()});
    unit.plan.reduce_each_micro->reduce_scatter(shard, full, comm_, call);
    if (!direct && !unit.reduced) launch(Cast{.y = sum, .x = shard}, comm_);
    if (!direct && unit.reduced && options_.exact()) launch(AddIntegers{.y = sum, .x = shard}, comm_);
    if (!direct && unit.reduced && !options_.exact()) launch(Axpy{.y = sum, .x = shard}, comm_);
    unit.reduced = true;
  } else {
    if (!options_.exact()) clear_unwritten(unit, unit.gradients);
    comm_.wait(compute_.record());
  }
  if (!last_) return;
  const bool later = unit.plan.reduce_each_step->size() > 1 || unit.plan.reduce_replicas->size() > 1;
  if (!later) return;
  Tensor full = unit.gradients;
  if (options_.wire != options_.gradients) {
    full = wire_.tensor().slice({0, full.numel()});
    launch(Cast{.y = full, .x = unit.gradients}, comm_);
  }
  const int64_t shard = div_exact(full.numel(), unit.plan.reduce_each_step->size());
  const Range mine = Range{0, shard}.shifted(unit.plan.reduce_each_step->rank() * shard);
  unit.plan.reduce_each_step->reduce_scatter(full.slice(mine), full, comm_, call);
  unit.plan.reduce_replicas->all_reduce(full.slice(mine), comm_, call);
  if (options_.wire != options_.gradients)
    launch(Cast{.y = unit.gradients.tensor().slice(mine), .x = full.slice(mine)}, comm_);
}

void ParameterStore::wait_for_gradients() { compute_.wait(comm_.record()); }

Range ParameterStore::slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const ZeroPlan& p = unit.plan;
  const int64_t at = p.reduce_each_micro->rank() * p.reduce_each_step->size() + p.reduce_each_step->rank();
  return Range{0, unit.slice_numel()}.shifted(at * unit.slice_numel());
}

Tensor ParameterStore::weights_slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const int64_t n = unit.slice_numel();
  return unit.weights.tensor().slice(Range{0, n}.shifted(unit.plan.gather_on_publish->rank() * n));
}

Tensor ParameterStore::gradient_slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const int64_t n = unit.slice_numel();
  return unit.gradients.tensor().slice(Range{0, n}.shifted(unit.plan.reduce_each_step->rank() * n));
}

// Cut over the replicas as well, so that every stage adds the same pieces in the same order and the norm has
// the same bits: at every stage the pieces are those of the data ranks.
Range ParameterStore::norm_range(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const Range mine =
      part(unit.slice_numel(), unit.plan.reduce_replicas->size(), unit.plan.reduce_replicas->rank());
  if (options_.counts_replicated) return mine;
  const Range split = intersect(mine, unit.layout.split().shifted(-slice(index).begin));
  return split.empty() ? Range{} : split;
}

void ParameterStore::publish(int index) {
  Unit& unit = *units_[size_t(index)];
  if (unit.plan.gather_on_publish->size() == 1) return;
  comm_.wait(compute_.record());
  unit.plan.gather_on_publish->all_gather(unit.weights, weights_slice(index), comm_,
                                          {.what = unit.layout.name(), .max_numel = options_.gather_numel});
}

void ParameterStore::wait_for_weights() {
  compute_.wait(comm_.record());
  released_ = compute_.record();  // gathers of the next pass must see the updated shards
}

void ParameterStore::sum_over_slices(Tensor partial_sums) {
  if (units_.empty()) return;
  comm_.wait(compute_.record());
  const ZeroPlan& plan = units_[0]->plan;
  for (Communicator* c : {plan.reduce_each_micro, plan.reduce_each_step, plan.reduce_replicas})
    c->all_reduce(partial_sums, comm_, {.what = "squared gradient norm"});
  compute_.wait(comm_.record());
}

}  // namespace cleave
